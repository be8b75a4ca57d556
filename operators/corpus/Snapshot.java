package headrace;

import java.io.IOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.lucene.analysis.Analyzer;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.CharTermAttribute;
import org.apache.lucene.document.Document;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.LongPoint;
import org.apache.lucene.document.NumericDocValuesField;
import org.apache.lucene.document.StringField;
import org.apache.lucene.document.TextField;
import org.apache.lucene.index.DirectoryReader;
import org.apache.lucene.index.DocValues;
import org.apache.lucene.index.IndexReader;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.LeafReader;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.PostingsEnum;
import org.apache.lucene.index.Term;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.BoostQuery;
import org.apache.lucene.search.CollectionStatistics;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.search.FieldDoc;
import org.apache.lucene.search.IndexOrDocValuesQuery;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.ScoreDoc;
import org.apache.lucene.search.Sort;
import org.apache.lucene.search.SortField;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.TermStatistics;
import org.apache.lucene.search.similarities.Similarity;
import org.apache.lucene.util.Bits;

/**
 * One shard's Lucene index at one moment: what Python needs of it, each in one call.
 *
 * <p>It is Java because JPype cannot subclass {@link IndexSearcher}, whose two statistics methods are the only way to
 * score a shard with the document frequencies of the whole corpus. Statistics count living chunks only, which Lucene's
 * own do not: a replaced chunk weighs on them until its segment is merged, and when that happens depends on the shard.
 */
public final class Snapshot {
  private static final Sort BY_SCORE_THEN_KEY = new Sort(SortField.FIELD_SCORE, new SortField("key", SortField.Type.LONG));

  private final DirectoryReader reader;
  private final String[] fields;
  private final long[] documents; // living chunks that have the field, by field
  private final long[] tokens; // their tokens

  /** Takes ownership of {@code reader}. */
  public Snapshot(DirectoryReader reader, String[] fields) throws IOException {
    this.reader = reader;
    this.fields = fields;
    this.documents = new long[fields.length];
    this.tokens = new long[fields.length];
    for (int f = 0; f < fields.length; f++) count(f);
  }

  private void count(int f) throws IOException {
    for (LeafReaderContext context : reader.leaves()) {
      LeafReader leaf = context.reader();
      documents[f] += leaf.getDocCount(fields[f]);
      tokens[f] += leaf.getSumTotalTermFreq(fields[f]);
      Bits live = leaf.getLiveDocs();
      if (live == null) continue;
      NumericDocValues lengths = DocValues.getNumeric(leaf, fields[f] + ".tokens");
      for (int d = lengths.nextDoc(); d != DocIdSetIterator.NO_MORE_DOCS; d = lengths.nextDoc()) {
        if (live.get(d) || lengths.longValue() == 0) continue;
        documents[f]--;
        tokens[f] -= lengths.longValue();
      }
    }
  }

  /** The tokens of a text, in order, repetitions included. */
  public static String[] terms(Analyzer analyzer, String text) throws IOException {
    List<String> terms = new ArrayList<>();
    try (TokenStream stream = analyzer.tokenStream("text", text)) {
      CharTermAttribute term = stream.addAttribute(CharTermAttribute.class);
      stream.reset();
      while (stream.incrementToken()) terms.add(term.toString());
      stream.end();
    }
    return terms.toArray(new String[0]);
  }

  /** Adds chunks of a document: {@code texts[f][c]} is field {@code f} of chunk {@code c}. */
  public static void add(IndexWriter writer, String id, long[] keys, String[] fields, String[][] texts)
      throws IOException {
    List<Document> chunks = new ArrayList<>(keys.length);
    for (int c = 0; c < keys.length; c++) {
      Document chunk = new Document();
      chunk.add(new StringField("document", id, Field.Store.NO));
      chunk.add(new LongPoint("key", keys[c]));
      chunk.add(new NumericDocValuesField("key", keys[c]));
      for (int f = 0; f < fields.length; f++) {
        chunk.add(new TextField(fields[f], texts[f][c], Field.Store.NO));
        // A second analysis, because Lucene keeps a chunk's exact length nowhere.
        chunk.add(new NumericDocValuesField(fields[f] + ".tokens", terms(writer.getAnalyzer(), texts[f][c]).length));
      }
      chunks.add(chunk);
    }
    writer.addDocuments(chunks);
  }

  /** This snapshot when the index stands still, else a new one; {@code writer} may be null. */
  public Snapshot refreshed(IndexWriter writer) throws IOException {
    DirectoryReader next =
        writer == null ? DirectoryReader.openIfChanged(reader) : DirectoryReader.openIfChanged(reader, writer);
    return next == null ? this : new Snapshot(next, fields);
  }

  /** Searches that still run keep the reader open until they end. */
  public void close() throws IOException {
    reader.close();
  }

  public int size() {
    return reader.numDocs();
  }

  /** By field: chunks, tokens, then for each term its chunks and its occurrences. */
  public long[][] statistics(String[] terms) throws IOException {
    reader.incRef();
    try {
      long[][] rows = new long[fields.length][2 + 2 * terms.length];
      for (int f = 0; f < fields.length; f++) {
        rows[f][0] = documents[f];
        rows[f][1] = tokens[f];
        for (int t = 0; t < terms.length; t++) {
          Term term = new Term(fields[f], terms[t]);
          for (LeafReaderContext leaf : reader.leaves()) frequencies(leaf.reader(), term, rows[f], 2 + 2 * t);
        }
      }
      return rows;
    } finally {
      reader.decRef();
    }
  }

  private static void frequencies(LeafReader leaf, Term term, long[] row, int at) throws IOException {
    Bits live = leaf.getLiveDocs();
    if (live == null) {
      row[at] += leaf.docFreq(term);
      row[at + 1] += leaf.totalTermFreq(term);
      return;
    }
    PostingsEnum postings = leaf.postings(term, PostingsEnum.FREQS);
    if (postings == null) return;
    for (int d = postings.nextDoc(); d != DocIdSetIterator.NO_MORE_DOCS; d = postings.nextDoc()) {
      if (!live.get(d)) continue;
      row[at]++;
      row[at + 1] += postings.freq();
    }
  }

  /** Hits in order: score descending, then key ascending. */
  public static final class Hits {
    public final long[] keys;
    public final float[] scores;

    Hits(ScoreDoc[] found) {
      keys = new long[found.length];
      scores = new float[found.length];
      for (int i = 0; i < found.length; i++) {
        Object[] values = ((FieldDoc) found[i]).fields;
        scores[i] = (Float) values[0];
        keys[i] = (Long) values[1];
      }
    }
  }

  /**
   * The best {@code limit} chunks for a bag of terms.
   *
   * @param boosts by field
   * @param counts how often the question says each term
   * @param statistics of the whole corpus, in the shape of {@link #statistics}
   * @param allowed keys to choose from, or null for all
   */
  public Hits search(
      Similarity similarity, float[] boosts, String[] terms, float[] counts, long[][] statistics, long[] allowed, int limit)
      throws IOException {
    BooleanQuery.Builder query = new BooleanQuery.Builder();
    GlobalSearcher searcher = new GlobalSearcher(reader);
    for (int f = 0; f < fields.length; f++) {
      if (boosts[f] == 0 || statistics[f][0] == 0) continue;
      searcher.know(fields[f], statistics[f][0], statistics[f][1]);
      for (int t = 0; t < terms.length; t++) {
        Term term = new Term(fields[f], terms[t]);
        if (statistics[f][2 + 2 * t] == 0) continue;
        searcher.know(term, statistics[f][2 + 2 * t], statistics[f][3 + 2 * t]);
        query.add(new BoostQuery(new TermQuery(term), counts[t] * boosts[f]), Occur.SHOULD);
      }
    }
    query.setMinimumNumberShouldMatch(1);
    if (allowed != null) query.add(keyIn(allowed), Occur.FILTER);
    searcher.setSimilarity(similarity);
    searcher.setQueryCache(null);
    reader.incRef();
    try {
      return new Hits(searcher.search(query.build(), limit, BY_SCORE_THEN_KEY).scoreDocs);
    } finally {
      reader.decRef();
    }
  }

  /** Lucene chooses the one that is cheaper: looking the keys up, or looking at each hit. */
  private static Query keyIn(long[] keys) {
    return new IndexOrDocValuesQuery(
        LongPoint.newSetQuery("key", keys), NumericDocValuesField.newSlowSetQuery("key", keys));
  }

  private static final class GlobalSearcher extends IndexSearcher {
    private final Map<Term, TermStatistics> terms = new HashMap<>();
    private final Map<String, CollectionStatistics> collections = new HashMap<>();

    GlobalSearcher(IndexReader reader) {
      super(reader);
    }

    void know(String field, long documents, long tokens) {
      collections.put(field, new CollectionStatistics(field, documents, documents, tokens, documents));
    }

    void know(Term term, long documents, long occurrences) {
      terms.put(term, new TermStatistics(term.bytes(), documents, occurrences));
    }

    @Override
    public TermStatistics termStatistics(Term term, int documents, long occurrences) {
      return terms.get(term);
    }

    @Override
    public CollectionStatistics collectionStatistics(String field) {
      return collections.get(field);
    }
  }
}
