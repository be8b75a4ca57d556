package headrace;

import org.apache.lucene.search.similarities.Similarity;

/** How a corpus is scored, the same for every question. */
public final class Scoring {
  final Similarity similarity;
  final String[] fields;
  final float[] boosts; // by field
  final int maxTerms; // of a question; the rarest are kept

  public Scoring(Similarity similarity, String[] fields, float[] boosts, int maxTerms) {
    this.similarity = similarity;
    this.fields = fields;
    this.boosts = boosts;
    this.maxTerms = maxTerms;
  }
}
