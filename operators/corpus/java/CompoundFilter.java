package headrace;

import java.util.ArrayDeque;
import java.util.LinkedHashSet;
import java.util.Set;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.TokenFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.analysis.tokenattributes.PositionIncrementAttribute;

/**
 * Adds to a compound its parts, and the parts joined, in its place.
 *
 * <p>getUserName has get, User, Name; user_id has user, id and userid; node.js has node, js and nodejs; v2.15.2 has
 * 2.15.2; python3 has python; 1,000 has 1000. Single letters are too common to be parts. Lucene's own
 * WordDelimiterGraphFilter would take 2.15.2 apart.
 */
final class CompoundFilter extends TokenFilter {
  /** Where a name is joined: at a symbol, in getUserName, in HTTPServer, but not in NGOs. */
  private static final Pattern JOINT =
      Pattern.compile("[_.:,'\u2019\u00b7+#&-]|\\p{Ll}\\p{Lu}|\\p{Lu}{2}\\p{Ll}{2}");
  private static final Pattern PART =
      Pattern.compile(
          "(?<version>\\d+(?:[.,]\\d+)+)"
              + "|(?:\\p{Lu}+(?!\\p{Ll}{2})|\\p{Lu}?[\\p{L}\\p{M}&&[^\\p{Lu}]]+)(?:\\d+(?![.,]?\\d))?"
              + "|\\d+");
  private static final Pattern THOUSANDS = Pattern.compile("\\d{1,3}(?:,\\d{3})+");
  private static final Pattern NUMBERED = Pattern.compile("(\\p{L}{3,})\\d{1,4}");

  private final CharTermAttribute term = addAttribute(CharTermAttribute.class);
  private final PositionIncrementAttribute position = addAttribute(PositionIncrementAttribute.class);
  private final ArrayDeque<String> parts = new ArrayDeque<>();
  private State whole;

  CompoundFilter(TokenStream input) {
    super(input);
  }

  @Override
  public void reset() throws java.io.IOException {
    super.reset();
    parts.clear();
  }

  @Override
  public boolean incrementToken() throws java.io.IOException {
    if (!parts.isEmpty()) {
      restoreState(whole);
      term.setEmpty().append(parts.remove());
      position.setPositionIncrement(0);
      return true;
    }
    if (!input.incrementToken()) return false;
    if (mayBeCompound()) {
      parts.addAll(partsOf(term.toString()));
      if (!parts.isEmpty()) whole = captureState();
    }
    return true;
  }

  /** Whether the token needs a closer look, which few do; puts symbols back in the place of their letters. */
  private boolean mayBeCompound() {
    char[] buffer = term.buffer();
    boolean found = false;
    for (int i = 0; i < term.length(); i++) {
      int symbol = MixedAnalyzer.LETTERS.indexOf(buffer[i]);
      if (symbol >= 0) buffer[i] = MixedAnalyzer.SYMBOLS.charAt(symbol);
      found |= !Character.isLetter(buffer[i]) || i > 0 && Character.isUpperCase(buffer[i]);
    }
    return found;
  }

  static Set<String> partsOf(String name) {
    Set<String> parts = new LinkedHashSet<>();
    Matcher numbered = NUMBERED.matcher(name);
    if (numbered.matches()) {
      parts.add(numbered.group(1));
    } else if (THOUSANDS.matcher(name).matches()) {
      parts.add(name.replace(",", ""));
    } else if (JOINT.matcher(name).find()) {
      takeApart(name, parts);
    }
    parts.remove(name);
    return parts;
  }

  private static void takeApart(String name, Set<String> parts) {
    StringBuilder joined = new StringBuilder();
    boolean version = false;
    for (Matcher part = PART.matcher(name); part.find(); ) {
      joined.append(part.group());
      version |= part.group("version") != null;
      if (part.end() - part.start() > 1 || Character.isDigit(name.charAt(part.start()))) parts.add(part.group());
    }
    if (!version && joined.length() > 1) parts.add(joined.toString());
  }
}
