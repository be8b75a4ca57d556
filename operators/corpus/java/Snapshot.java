package headrace;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.lucene.analysis.Analyzer;
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
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.index.NumericDocValues;
import org.apache.lucene.index.Term;
import org.apache.lucene.index.TermStates;
import org.apache.lucene.index.Terms;
import org.apache.lucene.index.TermsEnum;
import org.apache.lucene.search.BooleanClause.Occur;
import org.apache.lucene.search.BooleanQuery;
import org.apache.lucene.search.BoostQuery;
import org.apache.lucene.search.CollectionStatistics;
import org.apache.lucene.search.DocIdSetIterator;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.TermQuery;
import org.apache.lucene.search.TermStatistics;
import org.apache.lucene.util.BitSet;
import org.apache.lucene.util.BytesRef;

/**
 * One shard's Lucene index at one moment: what Python needs of it, each in one call.
 *
 * <p>It is Java because JPype cannot subclass {@link IndexSearcher}, whose two statistics methods are the only way to
 * score a shard with the document frequencies of the whole corpus.
 */
public final class Snapshot {
  /** From this part of all chunks on a filter is looked at for each hit, below it leads the search. */
  private static final int MANY = 16;

  private final DirectoryReader reader;
  private final Scoring scoring;
  private final List<Segment> segments = new ArrayList<>();

  /** Takes ownership of {@code reader}. */
  public Snapshot(DirectoryReader reader, Scoring scoring) throws IOException {
    this(reader, scoring, new HashMap<>());
  }

  /** What is known of a segment stays known until something in it is deleted: a write costs no look at the rest. */
  private Snapshot(DirectoryReader reader, Scoring scoring, Map<Object, Segment> known) throws IOException {
    this.reader = reader;
    this.scoring = scoring;
    for (LeafReaderContext leaf : reader.leaves()) {
      Segment before = known.get(leaf.reader().getCoreCacheHelper().getKey());
      segments.add(new Segment(leaf.reader(), scoring.fields, before));
    }
  }

  /** Adds chunks of a document: {@code texts[f][c]} is field {@code f} of chunk {@code c}. */
  public static void add(
      IndexWriter writer, Analyzer analyzer, String id, long[] keys, long[] prints, String[] fields, String[][] texts)
      throws IOException {
    List<Document> chunks = new ArrayList<>(keys.length);
    for (int c = 0; c < keys.length; c++) {
      Document chunk = new Document();
      chunk.add(new StringField("document", id, Field.Store.NO));
      chunk.add(new LongPoint("key", keys[c]));
      chunk.add(new NumericDocValuesField("key", keys[c]));
      chunk.add(new NumericDocValuesField("print", prints[c]));
      for (int f = 0; f < fields.length; f++) {
        Analysis tokens = new Analysis(analyzer, texts[f][c]);
        chunk.add(new TextField(fields[f], tokens.replay()));
        chunk.add(new NumericDocValuesField(fields[f] + ".tokens", tokens.length())); // Lucene's norms are rounded
      }
      chunks.add(chunk);
    }
    writer.addDocuments(chunks);
  }

  /** This snapshot when the index stands still, else a new one; {@code writer} may be null. */
  public Snapshot refreshed(IndexWriter writer) throws IOException {
    DirectoryReader next =
        writer == null ? DirectoryReader.openIfChanged(reader) : DirectoryReader.openIfChanged(reader, writer);
    if (next == null) return this;
    Map<Object, Segment> known = new HashMap<>();
    for (Segment segment : segments) known.put(segment.leaf.getCoreCacheHelper().getKey(), segment);
    return new Snapshot(next, scoring, known);
  }

  /** Searches that still run keep the reader open until they end. */
  public void close() throws IOException {
    reader.close();
  }

  public int size() {
    return reader.numDocs();
  }

  /** The number that was committed with what a reader sees. */
  public long seq() throws IOException {
    return Long.parseLong(reader.getIndexCommit().getUserData().get("seq"));
  }

  /** Of the living chunks, in no order: their keys, and then the numbers in those columns. */
  public long[][] columns(String... names) throws IOException {
    reader.incRef();
    try {
      long[][] columns = new long[names.length][reader.numDocs()];
      for (int c = 0; c < names.length; c++) {
        int row = 0;
        for (Segment segment : segments) {
          NumericDocValues values = DocValues.getNumeric(segment.leaf, names[c]);
          for (int d = 0; d < segment.leaf.maxDoc(); d++) {
            if (segment.isLive(d)) columns[c][row++] = values.advanceExact(d) ? values.longValue() : 0;
          }
        }
      }
      return columns;
    } finally {
      reader.decRef();
    }
  }

  /** By field: chunks, tokens, then for each term its chunks and its occurrences. */
  public long[][] statistics(String[] terms) throws IOException {
    reader.incRef();
    try {
      return count(terms, null);
    } finally {
      reader.decRef();
    }
  }

  /** As {@link #statistics}; where the terms stand is put into {@code places}, by field and term, unless it is null. */
  private long[][] count(String[] terms, TermStates[][] places) throws IOException {
    BytesRef[] bytes = Arrays.stream(terms).map(BytesRef::new).toArray(BytesRef[]::new);
    long[][] rows = new long[scoring.fields.length][2 + 2 * terms.length];
    for (int s = 0; s < segments.size(); s++) {
      Segment segment = segments.get(s);
      for (int f = 0; f < rows.length; f++) {
        rows[f][0] += segment.documents[f];
        rows[f][1] += segment.tokens[f];
        Terms known = segment.leaf.terms(scoring.fields[f]);
        if (known == null) continue;
        TermsEnum each = known.iterator();
        for (int t = 0; t < terms.length; t++) {
          if (!each.seekExact(bytes[t])) continue;
          segment.frequencies(each, rows[f], 2 + 2 * t);
          if (places == null) continue;
          if (places[f][t] == null) places[f][t] = new TermStates(reader.getContext());
          places[f][t].register(each.termState(), s, each.docFreq(), each.totalTermFreq());
        }
      }
    }
    return rows;
  }

  /**
   * The best {@code limit} chunks for a bag of terms.
   *
   * @param counts how often the question says each term
   * @param statistics of the whole corpus, in the shape of {@link #statistics}; null: this shard is all of it
   * @param allowed chunks to choose from, or null for all
   */
  public Best search(String[] terms, float[] counts, long[][] statistics, KeySet allowed, int limit)
      throws IOException {
    reader.incRef();
    try {
      TermStates[][] places = new TermStates[scoring.fields.length][terms.length];
      long[][] rows = statistics != null ? statistics : count(terms, places);
      GlobalSearcher searcher = new GlobalSearcher(reader);
      searcher.setSimilarity(scoring.similarity);
      searcher.setQueryCache(null);
      BooleanQuery.Builder query = new BooleanQuery.Builder().setMinimumNumberShouldMatch(1);
      for (int t : rarest(terms, rows)) {
        for (int f = 0; f < scoring.fields.length; f++) {
          Term term = new Term(scoring.fields[f], terms[t]);
          if (scoring.boosts[f] == 0 || !searcher.know(term, rows[f], 2 + 2 * t)) continue;
          TermQuery one = places[f][t] == null ? new TermQuery(term) : new TermQuery(term, places[f][t]);
          query.add(new BoostQuery(one, counts[t] * scoring.boosts[f]), Occur.SHOULD);
        }
      }
      BitSet[] only = allowed == null ? null : allowed.in(segments);
      boolean many = allowed != null && allowed.size() > reader.numDocs() / MANY;
      if (only != null && !many) query.add(new KeySet.Documents(only), Occur.FILTER);
      Best best = new Best(Math.min(limit, reader.numDocs()), many ? only : null);
      if (!searcher.terms.isEmpty() && best.keys.length > 0) searcher.search(query.build(), best);
      return best.sorted();
    } finally {
      reader.decRef();
    }
  }

  /**
   * As the other, for a question as it was asked and a shard that is all of the corpus: one call, no term crosses over.
   *
   * @param analyzers each for a question of which the one before leaves nothing
   */
  public Best search(Analyzer[] analyzers, String question, KeySet allowed, int limit) throws IOException {
    Map<String, Integer> counts = new LinkedHashMap<>();
    for (Analyzer analyzer : analyzers) {
      for (String term : Analysis.terms(analyzer, question)) counts.merge(term, 1, Integer::sum);
      if (!counts.isEmpty()) break;
    }
    String[] terms = counts.keySet().toArray(new String[0]);
    float[] times = new float[terms.length];
    for (int t = 0; t < terms.length; t++) times[t] = counts.get(terms[t]);
    return search(terms, times, null, allowed, limit);
  }

  /** The terms to search for, in their order: all, or as many of the rarest as a question may have. */
  private int[] rarest(String[] terms, long[][] rows) {
    Integer[] order = new Integer[terms.length];
    long[] documents = new long[terms.length];
    for (int t = 0; t < terms.length; t++) {
      order[t] = t;
      for (long[] row : rows) documents[t] += row[2 + 2 * t];
    }
    if (terms.length > scoring.maxTerms) {
      Arrays.sort(order, Comparator.<Integer>comparingLong(t -> documents[t]).thenComparing(t -> terms[t]));
    }
    return Arrays.stream(order).mapToInt(t -> t).filter(t -> documents[t] > 0).limit(scoring.maxTerms).sorted().toArray();
  }

  private static final class GlobalSearcher extends IndexSearcher {
    private final Map<Term, TermStatistics> terms = new HashMap<>();
    private final Map<String, CollectionStatistics> collections = new HashMap<>();

    GlobalSearcher(IndexReader reader) {
      super(reader);
    }

    /** Learns a field's and a term's statistics from a row of them; false: no chunk of the corpus holds the term. */
    boolean know(Term term, long[] row, int at) {
      if (row[at] == 0) return false;
      terms.put(term, new TermStatistics(term.bytes(), row[at], row[at + 1]));
      collections.put(term.field(), new CollectionStatistics(term.field(), row[0], row[0], row[1], row[0]));
      return true;
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
