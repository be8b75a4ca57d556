package headrace;

import java.io.IOException;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.search.Collector;
import org.apache.lucene.search.LeafCollector;
import org.apache.lucene.search.Scorable;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.util.BitSet;

/**
 * Collects the best hits: score descending, then key ascending, which Lucene's collector for scores alone cannot and
 * its collector for sorts does slowly. Keys are read only of hits that may be among the best.
 */
public final class Best implements Collector {
  public long[] keys; // a heap with the worst hit first, until `sort`
  public float[] scores;
  private final BitSet[] only; // by segment; null: all
  private int size;

  Best(int limit, BitSet[] only) {
    this.only = only;
    keys = new long[limit];
    scores = new float[limit];
  }

  @Override
  public ScoreMode scoreMode() {
    return ScoreMode.TOP_SCORES;
  }

  @Override
  public LeafCollector getLeafCollector(LeafReaderContext context) throws IOException {
    BitSet allowed = only == null ? null : only[context.ord];
    NumericDocValues key = DocValues.getNumeric(context.reader(), "key");
    return new LeafCollector() {
      private Scorable scorer;

      @Override
      public void setScorer(Scorable scorer) throws IOException {
        this.scorer = scorer;
        skipWorse();
      }

      @Override
      public void collect(int document) throws IOException {
        if (allowed != null && !allowed.get(document)) return;
        float score = scorer.score();
        if (size == scores.length && score < scores[0]) return;
        key.advanceExact(document);
        if (offer(key.longValue(), score)) skipWorse();
      }

      private void skipWorse() throws IOException {
        if (size == scores.length) scorer.setMinCompetitiveScore(scores[0]); // an equal one may have a lower key
      }
    };
  }

  private boolean offer(long key, float score) {
    if (size < scores.length) {
      up(size++, key, score);
      return true;
    }
    if (!worse(keys[0], scores[0], key, score)) return false;
    down(0, key, score);
    return true;
  }

  private static boolean worse(long key, float score, long other, float otherScore) {
    return score < otherScore || score == otherScore && key > other;
  }

  private void up(int at, long key, float score) {
    for (int parent; at > 0; at = parent) {
      parent = (at - 1) >>> 1;
      if (!worse(key, score, keys[parent], scores[parent])) break;
      put(at, keys[parent], scores[parent]);
    }
    put(at, key, score);
  }

  private void down(int at, long key, float score) {
    for (int child; (child = 2 * at + 1) < size; at = child) {
      if (child + 1 < size && worse(keys[child + 1], scores[child + 1], keys[child], scores[child])) child++;
      if (!worse(keys[child], scores[child], key, score)) break;
      put(at, keys[child], scores[child]);
    }
    put(at, key, score);
  }

  private void put(int at, long key, float score) {
    keys[at] = key;
    scores[at] = score;
  }

  /** Puts the best first; nothing can be collected after it. */
  Best sorted() {
    int found = size;
    while (size > 1) {
      long key = keys[0];
      float score = scores[0];
      size--;
      down(0, keys[size], scores[size]);
      put(size, key, score);
    }
    keys = java.util.Arrays.copyOf(keys, found);
    scores = java.util.Arrays.copyOf(scores, found);
    return this;
  }
}
