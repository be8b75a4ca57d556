package headrace;

import java.io.IOException;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.util.FixedBitSet;

/**
 * One segment at one moment, with its statistics over living chunks.
 *
 * <p>Lucene's own count deleted chunks until their segment is merged, and when that happens depends on the shard. Those
 * here take off what the deleted ones hold, at a cost that grows with the deleted ones or with the term's postings,
 * whichever are fewer.
 */
final class Segment {
  final LeafReader leaf;
  final long[] documents; // living chunks that have the field, by field
  final long[] tokens; // their tokens
  private final int[] deleted; // ascending
  private final FixedBitSet live; // null: all
  private SortedKeys keys; // null: nobody has asked

  /** {@code before} is the same segment when it had less deleted or the same, or null: what it knew is kept. */
  Segment(LeafReader leaf, String[] fields, Segment before) throws IOException {
    this.leaf = leaf;
    keys = before == null ? null : before.keys;
    if (before != null && before.leaf.numDocs() == leaf.numDocs()) {
      live = before.live;
      deleted = before.deleted;
      documents = before.documents;
      tokens = before.tokens;
      return;
    }
    live = leaf.getLiveDocs() == null ? null : FixedBitSet.copyOf(leaf.getLiveDocs());
    deleted = deleted(live);
    documents = new long[fields.length];
    tokens = new long[fields.length];
    for (int f = 0; f < fields.length; f++) count(f, fields[f]);
  }

  private static int[] deleted(FixedBitSet live) {
    if (live == null) return new int[0];
    FixedBitSet dead = live.clone();
    dead.flip(0, dead.length());
    int[] deleted = new int[dead.cardinality()];
    for (int i = 0, d = -1; i < deleted.length; i++) deleted[i] = d = dead.nextSetBit(d + 1);
    return deleted;
  }

  private void count(int f, String field) throws IOException {
    documents[f] = leaf.getDocCount(field);
    tokens[f] = leaf.getSumTotalTermFreq(field);
    NumericDocValues lengths = DocValues.getNumeric(leaf, field + ".tokens");
    for (int d : deleted) {
      if (!lengths.advanceExact(d) || lengths.longValue() == 0) continue;
      documents[f]--;
      tokens[f] -= lengths.longValue();
    }
  }

  /**
   * Adds to {@code row}, from {@code at} on, the living chunks that hold the term that {@code terms} stands at, and its
   * occurrences in them.
   */
  void frequencies(TermsEnum terms, long[] row, int at) throws IOException {
    if (deleted.length >= terms.docFreq()) {
      PostingsEnum postings = terms.postings(null, PostingsEnum.FREQS);
      for (int d = postings.nextDoc(); d != PostingsEnum.NO_MORE_DOCS; d = postings.nextDoc()) {
        if (live.get(d)) add(row, at, 1, postings.freq());
      }
      return;
    }
    add(row, at, terms.docFreq(), terms.totalTermFreq());
    if (deleted.length == 0) return;
    PostingsEnum postings = terms.postings(null, PostingsEnum.FREQS);
    for (int d : deleted) {
      if (postings.docID() < d && postings.advance(d) == PostingsEnum.NO_MORE_DOCS) return;
      if (postings.docID() == d) add(row, at, -1, -postings.freq());
    }
  }

  private static void add(long[] row, int at, long documents, long occurrences) {
    row[at] += documents;
    row[at + 1] += occurrences;
  }

  synchronized SortedKeys keys() throws IOException {
    if (keys == null) keys = new SortedKeys(leaf);
    return keys;
  }

  boolean isLive(int document) {
    return live == null || live.get(document);
  }
}
