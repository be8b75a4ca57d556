package headrace;

import java.io.IOException;
import java.util.Set;
import org.apache.lucene.document.Document;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.DocValuesType;
import org.apache.lucene.index.FieldInfo;
import org.apache.lucene.index.FieldInfos;
import org.apache.lucene.index.IndexOptions;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.PrefixQuery;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.Sort;
import org.apache.lucene.search.SortField;
import org.apache.lucene.search.similarities.Similarity;

/** An index that Anserini made, searched as Anserini does it. */
public final class Foreign {
  private static final Set<String> STORED = Set.of("id", "contents", "raw");

  private final DirectoryReader reader;
  private final IndexSearcher searcher;
  private final Sort order;

  /** Takes ownership of {@code reader}. */
  public Foreign(DirectoryReader reader, Similarity similarity) {
    this.reader = reader;
    searcher = new IndexSearcher(reader);
    searcher.setSimilarity(similarity);
    FieldInfo id = FieldInfos.getMergedFieldInfos(reader).fieldInfo("id");
    boolean sortable = id != null && id.getDocValuesType() != DocValuesType.NONE; // since Anserini 0.14
    SortField tie = sortable ? new SortField("id", SortField.Type.STRING_VAL) : SortField.FIELD_DOC;
    order = new Sort(SortField.FIELD_SCORE, tie);
  }

  /** Whether a field can be searched. */
  public boolean isIndexed(String field) {
    FieldInfo info = FieldInfos.getMergedFieldInfos(reader).fieldInfo(field);
    return info != null && info.getIndexOptions() != IndexOptions.NONE;
  }

  public int size() {
    return reader.numDocs();
  }

  /** Numbers of documents, best first, and their scores. */
  public static final class Hits {
    public final long[] documents;
    public final float[] scores;

    Hits(ScoreDoc[] found) {
      documents = new long[found.length];
      scores = new float[found.length];
      for (int i = 0; i < found.length; i++) {
        documents[i] = found[i].doc;
        scores[i] = found[i].score;
      }
    }
  }

  /** The best hits: score descending, then id ascending; {@code prefix} is of their ids. */
  public Hits search(Query words, String prefix, int limit) throws IOException {
    BooleanQuery.Builder query = new BooleanQuery.Builder().add(words, Occur.MUST);
    if (!prefix.isEmpty()) query.add(new PrefixQuery(new Term("id", prefix)), Occur.FILTER);
    return new Hits(searcher.search(query.build(), limit, order, true).scoreDocs);
  }

  /** Of each document its id, its stored contents and what it was made from; null where it stores none. */
  public String[][] texts(int[] documents) throws IOException {
    String[][] texts = new String[documents.length][];
    for (int i = 0; i < documents.length; i++) {
      Document stored = reader.storedFields().document(documents[i], STORED);
      texts[i] = new String[] {stored.get("id"), stored.get("contents"), stored.get("raw")};
    }
    return texts;
  }

  public void close() throws IOException {
    reader.close();
  }
}
