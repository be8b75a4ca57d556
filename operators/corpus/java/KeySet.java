package headrace;

import java.io.IOException;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.WeakHashMap;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.search.ConstantScoreScorer;
import org.apache.lucene.search.ConstantScoreWeight;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.QueryVisitor;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.Scorer;
import org.apache.lucene.search.Weight;
import org.apache.lucene.util.BitSet;
import org.apache.lucene.util.BitSetIterator;
import org.apache.lucene.util.FixedBitSet;
import org.apache.lucene.util.SparseFixedBitSet;

/**
 * The chunks with some keys. Which they are in a segment is found once and remembered as long as the segment lives: the
 * next question with the same filter finds it done, and a write costs a look at the new segment only.
 */
public final class KeySet {
  private final long[] keys; // ascending
  private final Map<Object, BitSet> found = new WeakHashMap<>(); // by segment, whatever was deleted in it

  public KeySet(long[] keys) {
    this.keys = keys;
  }

  int size() {
    return keys.length;
  }

  private synchronized BitSet in(Segment segment) throws IOException {
    Object core = segment.leaf.getCoreCacheHelper().getKey();
    BitSet documents = found.get(core);
    if (documents == null) found.put(core, documents = look(segment.keys(), segment.leaf.maxDoc()));
    return documents;
  }

  /** Looks each of the fewer up among the more. */
  private BitSet look(SortedKeys there, int maxDoc) {
    BitSet documents = keys.length < maxDoc >>> 7 ? new SparseFixedBitSet(maxDoc) : new FixedBitSet(maxDoc);
    boolean few = keys.length < there.keys.length;
    long[] sought = few ? keys : there.keys;
    long[] among = few ? there.keys : keys;
    for (int s = 0, next = 0; s < sought.length && next < among.length; s++) {
      next = gallop(among, next, sought[s]);
      if (next < among.length && among[next] == sought[s]) documents.set(there.documents[few ? next : s]);
    }
    return documents;
  }

  /** Where {@code key} is or would be, from {@code from} on: most often near, sometimes far. */
  private static int gallop(long[] among, int from, long key) {
    int step = 1;
    while (from + step < among.length && among[from + step] < key) step *= 2;
    int at = Arrays.binarySearch(among, from, Math.min(from + step + 1, among.length), key);
    return at < 0 ? -at - 1 : at;
  }

  /** By segment. */
  BitSet[] in(List<Segment> segments) throws IOException {
    BitSet[] documents = new BitSet[segments.size()];
    for (int s = 0; s < documents.length; s++) documents[s] = in(segments.get(s));
    return documents;
  }

  /** A query for given documents, by segment, which changes no score. */
  static final class Documents extends Query {
    private final BitSet[] documents;

    Documents(BitSet[] documents) {
      this.documents = documents;
    }

    @Override
    public Weight createWeight(IndexSearcher searcher, ScoreMode mode, float boost) {
      return new ConstantScoreWeight(this, boost) {
        @Override
        public Scorer scorer(LeafReaderContext context) {
          BitSet some = documents[context.ord];
          return new ConstantScoreScorer(this, score(), mode, new BitSetIterator(some, some.approximateCardinality()));
        }

        @Override
        public boolean isCacheable(LeafReaderContext context) {
          return false;
        }
      };
    }

    @Override
    public void visit(QueryVisitor visitor) {
      visitor.visitLeaf(this);
    }

    @Override
    public String toString(String field) {
      return "documents";
    }

    @Override
    public boolean equals(Object other) {
      return this == other;
    }

    @Override
    public int hashCode() {
      return System.identityHashCode(this);
    }
  }
}
