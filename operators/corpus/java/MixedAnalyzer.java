package headrace;

import java.io.IOException;
import java.io.InputStream;
import java.io.Reader;
import java.io.StringReader;
import java.io.StringWriter;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.text.Normalizer;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.CharArraySet;
import org.apache.lucene.analysis.LowerCaseFilter;
import org.apache.lucene.analysis.StopFilter;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.Tokenizer;
import org.apache.lucene.analysis.cjk.CJKBigramFilter;
import org.apache.lucene.analysis.en.EnglishAnalyzer;
import org.apache.lucene.analysis.en.EnglishPossessiveFilter;
import org.apache.lucene.analysis.en.PorterStemFilter;
import org.apache.lucene.analysis.miscellaneous.ASCIIFoldingFilter;
import org.apache.lucene.analysis.standard.StandardTokenizer;

/**
 * English, Chinese, Japanese and Korean in one index, and the names that programmers give things.
 *
 * <p>Words are stemmed and lose case and accents (Latin, Greek and Cyrillic ones); runs of Han, kana and hangul become
 * bigrams, traditional characters their simplified forms. C++, C#, .NET and AT&T are words; see {@link CompoundFilter} for getUserName and v2.15.2.
 *
 * <p>Questions are analysed otherwise than chunks in two ways. Only chunks have single Chinese characters beside the
 * bigrams: so a question of one character finds them, and in a longer one they would be noise. Only questions lose stop
 * words, and those only if they are not written in capitals: so IT can be asked for, and "to be or not to be", too.
 */
public final class MixedAnalyzer extends Analyzer {
  static final String SYMBOLS = "+#.&-";
  static final String LETTERS = "\u1429\u2d4c\ua4f8\ua778\ua78f"; // that look like them, and are kept by the tokenizer

  private static final Pattern SYMBOL_OF_A_NAME =
      Pattern.compile(
          "(?<=\\p{Alnum})\\+\\+(?!\\+)" // C++, Notepad++
              + "|(?<=\\p{Alpha})\\+(?![\\p{Alnum}+])" // Disney+
              + "|(?<=(?<!\\p{Alnum})\\p{Alpha})#(?!#)" // C#
              + "|(?<![\\p{IsLatin}\\p{Nd}._)\\]])\\.(?=\\p{Alpha})" // .NET
              + "|(?<=\\p{Lu})&(?=\\p{Lu})" // AT&T
              + "|(?<=\\p{L})-(?=\\p{L})"); // e-mail

  private static final int ALL_SCRIPTS =
      CJKBigramFilter.HAN | CJKBigramFilter.HIRAGANA | CJKBigramFilter.KATAKANA | CJKBigramFilter.HANGUL;

  private static final CharArraySet STOP_WORDS = stopWords();
  private static final char[] PLAIN = plain();

  private final boolean question;
  private final boolean stopping;

  private MixedAnalyzer(boolean question, boolean stopping) {
    this.question = question;
    this.stopping = stopping;
  }

  public static MixedAnalyzer forChunks() {
    return new MixedAnalyzer(false, false);
  }

  public static MixedAnalyzer forQuestions() {
    return new MixedAnalyzer(true, true);
  }

  /** For questions of stop words alone. */
  public static MixedAnalyzer forStopWords() {
    return new MixedAnalyzer(true, false);
  }

  @Override
  protected TokenStreamComponents createComponents(String field) {
    Tokenizer words = new StandardTokenizer();
    TokenStream stream = new EnglishPossessiveFilter(words);
    stream = new CompoundFilter(stream);
    if (stopping) stream = new StopFilter(stream, STOP_WORDS);
    stream = new LowerCaseFilter(stream);
    stream = new CJKBigramFilter(new ASCIIFoldingFilter(stream), ALL_SCRIPTS, !question);
    return new TokenStreamComponents(words, new PorterStemFilter(stream));
  }

  @Override
  protected Reader initReader(String field, Reader reader) {
    try (reader) {
      StringWriter text = new StringWriter();
      reader.transferTo(text);
      return new StringReader(normalised(text.toString()));
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  /** Compatible and composed forms as one, plain characters, and letters for the symbols that make a name. */
  static String normalised(String text) {
    // A full-width comma would become one that holds numbers together; a soft hyphen is no part of its word.
    String composed = text.replace('\uff0c', '\u3001').replace("\u00ad", "");
    composed = Normalizer.normalize(composed, Normalizer.Form.NFKC);
    Matcher symbols = SYMBOL_OF_A_NAME.matcher(composed).useTransparentBounds(true);
    StringBuilder made = new StringBuilder(composed.length() + 8);
    for (int i = 0; i < composed.length(); i++) {
      char character = composed.charAt(i);
      int symbol = SYMBOLS.indexOf(character);
      if (character == '\u3005' && i > 0) character = composed.charAt(i - 1); // repeats the one before it
      if (symbol < 0 || !symbols.region(i, composed.length()).lookingAt()) {
        boolean accent = character >= '\u0300' && character <= '\u036f'; // one that no letter is composed with
        if (!accent) made.append(PLAIN[character]);
        continue;
      }
      for (; i < symbols.end(); i++) made.append(LETTERS.charAt(symbol));
      i--;
      if (composed.startsWith("++", i - 1) || character == '#') made.append(' '); // so that C++ is found in C++17
    }
    return made.toString();
  }

  /** Lucene's English stop words, in small letters and with a capital one; IT is none of them. */
  private static CharArraySet stopWords() {
    CharArraySet words = new CharArraySet(64, false);
    for (Object each : EnglishAnalyzer.ENGLISH_STOP_WORDS_SET) {
      String word = new String((char[]) each);
      words.add(word);
      words.add(word.substring(0, 1).toUpperCase(java.util.Locale.ROOT) + word.substring(1));
    }
    return words;
  }

  /**
   * For each character the one that stands for it: itself, the simplified form of a traditional one, or a Greek or
   * Cyrillic letter without its accents (and \u0439 without its breve, as in ICU's folding). Those of Latin letters go
   * with ASCIIFoldingFilter, which knows more of them.
   */
  private static char[] plain() {
    char[] table = new char[Character.MAX_VALUE + 1];
    for (int c = 0; c < table.length; c++) {
      boolean accented = c >= 0x370 && c < 0x530 || c >= 0x1f00 && c < 0x2000;
      table[c] = accented ? Normalizer.normalize(String.valueOf((char) c), Normalizer.Form.NFD).charAt(0) : (char) c;
    }
    table['\u03c2'] = '\u03c3'; // the sigma at the end of a word
    try (InputStream pairs = MixedAnalyzer.class.getResourceAsStream("simplified.txt")) {
      String text = new String(pairs.readAllBytes(), StandardCharsets.UTF_8);
      for (String line : text.split("\n")) {
        if (!line.startsWith("#")) for (int i = 0; i + 1 < line.length(); i += 2) table[line.charAt(i)] = line.charAt(i + 1);
      }
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
    return table;
  }
}
