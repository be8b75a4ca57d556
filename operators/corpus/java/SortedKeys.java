package headrace;

import java.io.IOException;
import java.util.Arrays;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.PointValues;
import org.apache.lucene.util.NumericUtils;

/**
 * The keys of a segment, ascending, and the document of each, deleted ones included: 12 bytes a chunk. Of a key that was
 * put again before the segment was written, the last document: the ones before it are deleted.
 */
final class SortedKeys implements PointValues.IntersectVisitor {
  long[] keys;
  int[] documents;
  private int size;

  SortedKeys(LeafReader leaf) throws IOException {
    PointValues points = leaf.getPointValues("key"); // a tree, walked in order
    keys = new long[points == null ? 0 : Math.toIntExact(points.size())];
    documents = new int[keys.length];
    if (points != null) points.intersect(this);
    if (size == keys.length) return;
    keys = Arrays.copyOf(keys, size);
    documents = Arrays.copyOf(documents, size);
  }

  @Override
  public PointValues.Relation compare(byte[] low, byte[] high) {
    return PointValues.Relation.CELL_CROSSES_QUERY; // every cell is opened, to see its keys
  }

  @Override
  public void visit(int document) {
    throw new AssertionError("a cell was not opened");
  }

  @Override
  public void visit(int document, byte[] packed) {
    long key = NumericUtils.sortableBytesToLong(packed, 0);
    if (size > 0 && keys[size - 1] == key) document = Math.max(document, documents[--size]);
    keys[size] = key;
    documents[size++] = document;
  }
}
