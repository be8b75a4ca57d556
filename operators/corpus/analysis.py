"""How texts and questions become the terms of the lexical index."""

from __future__ import annotations

from collections import Counter
from typing import Any

from operators.corpus import jvm

# What a corpus's analyzer makes of a text; the number goes up when that changes, and indexes are then made anew.
_MARKS = {"mixed": "mixed 3", "anserini-english": "anserini-english 1"}


class Analysis:
    """One of a corpus's analyzers.

    "mixed" is java/MixedAnalyzer: stemmed English and bigrams of Chinese, Japanese and Korean in one index, without
    case and accents; traditional characters as their simplified forms; names of programmers and versions whole and by
    their parts. "anserini-english" is Anserini's.

    Args:
        name: As in CorpusConfig.analyzer.
    """

    def __init__(self, name: str) -> None:
        java = jvm.start().JClass
        self.mark = _MARKS[name]
        self.chunks: Any
        each: tuple[Any, ...]
        if name == "mixed":
            mixed = java("headrace.MixedAnalyzer")
            self.chunks = mixed.forChunks()
            each = mixed.forQuestions(), mixed.forStopWords()
        else:
            self.chunks = java("io.anserini.analysis.DefaultEnglishAnalyzer").newDefaultInstance()
            each = (self.chunks,)
        # Each for a question of which the one before leaves nothing.
        self.questions = java("org.apache.lucene.analysis.Analyzer[]")(list(each))
        self._terms = java("headrace.Analysis").terms

    def terms(self, question: str) -> dict[str, int]:
        """The terms of a question and how often it says each, in its order."""
        for analyzer in self.questions:
            if terms := self._terms(analyzer, question):
                return dict(Counter(map(str, terms)))
        return {}
