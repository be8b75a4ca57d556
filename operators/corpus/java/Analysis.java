package headrace;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.analysis.tokenattributes.PositionIncrementAttribute;

/** The tokens of one text, recorded: they are counted, and then indexed without a second analysis. */
public final class Analysis {
  private final List<String> terms = new ArrayList<>();
  private final List<Integer> increments = new ArrayList<>();

  Analysis(Analyzer analyzer, String text) throws IOException {
    try (TokenStream stream = analyzer.tokenStream("text", text)) {
      CharTermAttribute term = stream.addAttribute(CharTermAttribute.class);
      PositionIncrementAttribute position = stream.addAttribute(PositionIncrementAttribute.class);
      stream.reset();
      while (stream.incrementToken()) {
        terms.add(term.toString());
        increments.add(position.getPositionIncrement());
      }
      stream.end();
    }
  }

  /** The tokens of a text, in order, repetitions included. */
  public static String[] terms(Analyzer analyzer, String text) throws IOException {
    return new Analysis(analyzer, text).terms.toArray(new String[0]);
  }

  int length() {
    return terms.size();
  }

  TokenStream replay() {
    return new Replay();
  }

  private final class Replay extends TokenStream {
    private final CharTermAttribute term = addAttribute(CharTermAttribute.class);
    private final PositionIncrementAttribute position = addAttribute(PositionIncrementAttribute.class);
    private int next;

    @Override
    public void reset() {
      next = 0;
    }

    @Override
    public boolean incrementToken() {
      if (next == terms.size()) return false;
      clearAttributes();
      term.append(terms.get(next));
      position.setPositionIncrement(increments.get(next++));
      return true;
    }
  }
}
