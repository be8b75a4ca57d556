"""The extractive generator: answers with the sentences of the sources that answer, and needs no model."""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from engine.errors import InvalidInput
from operators.cite import no_answer
from operators.markers import drop_markers
from operators.messages import Delta, Finish, Passage, Prompt, Text, Usage
from operators.sentences import Kind, Sentence, split_sentences
from operators.words import CJK, content_words

MODEL = "extractive"

_LEAD_IN_CHARS = 600  # "To install:" takes the code or list below it along up to this size
_TOKEN = re.compile(rf"[{CJK}]|[^\W{CJK}]+(?:['’][^\W{CJK}]+)*")
_TABLE_HEADER = re.compile(r"[ \t|]*\n[ \t]*\|[ \t]*:?-[-:| \t]*(?:\n|\Z)")
_BLOCKS = {Kind.CODE, Kind.ITEM, Kind.ROW}
_NUMERAL = "two|three|four|five|six|seven|eight|nine|ten|once|twice|dozens?|hundreds?|thousands?|millions?"
_CUES = [
    # What a question asks for, and what a sentence that answers it would then show beyond the question's own words.
    (
        r"\bhow (?:many|much|old|long|far|tall|large|often)\b|\bpopulation\b|多少|几[个位次名种人]|多[大高长远]",
        rf"\d|(?i:\b(?:{_NUMERAL})\b)|[一二三四五六七八九十百千万两]+[个位次名种人]",
    ),
    (
        r"\bwhen\b|\b(?:what|which) (?:year|date|day|month|century|decade)\b|何时|什么时候|哪一?[年月天日]|几[年月日]",
        r"\b(?:1\d|20)\d\d\b|\b\d{1,2}th century|\d\s?[年月日]|世纪|[零〇一二三四五六七八九十]{2,}[年月日]",
    ),
    (r"\bwho(?:m|se)?\b", r"(?<=[a-z,;:(] )[A-Z][\w.'’-]+(?: [A-Z][\w.'’-]+)+"),
    (r"\bwhere\b|哪里|哪儿|何地|什么地方", r"\b(?:in|at|near|from|to) (?:the )?[A-Z]\w+|位于|[省市县州国城岛区镇]"),
    (
        r"\bwhy\b|为什么|为何|什么原因",
        r"(?i:\b(?:because|since|due to|so that|in order to)\b)|因为|由于|因此|所以|为了",
    ),
    (r"\bhow (?:do|can|to|should|does)\b|如何|怎么|怎样", r"`[^`]+`"),
]
_CUES_COMPILED = [(re.compile(asked, re.IGNORECASE), re.compile(shown)) for asked, shown in _CUES]


class ExtractConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How sentences are chosen.

    The weights were set by hand on 91 HotpotQA and 300 CMRC 2018 questions; halving or doubling one moves the share of
    answers that hold the gold answer by a few points, mostly by making answers longer or shorter.

    Args:
        max_sentences: Sentences in an answer at most, 1 or more.
        min_coverage: Share of the question's weight that the best sentence must hold, 0 to 1; below it nothing
            answers. Higher abstains more.
        min_gain: A further sentence must be worth this share of the first, 0 to 1. Higher makes shorter answers.
        context_weight: What a word of the question counts that only the title or the heading above holds, 0 to 1.
        repeated_weight: How much of its worth a word of the question loses once a chosen sentence holds it, 0 to 1.
        bridge_weight: Worth of sharing all other words of the sentences chosen so far, for answers in two hops.
        cue_weight: Worth of showing what the question asks for: a number, a date, a name, a place, a reason, code.
        rank_weight: Worth of standing in source 1; source n has an n-th of it.
        max_overlap: A sentence that shares at least this part of the shorter one's words with a chosen one is
            redundant, 0 to 1.

    Raises:
        InvalidInput: A value is out of its range.
    """

    max_sentences: int = 4
    min_coverage: float = 0.2
    min_gain: float = 0.35
    context_weight: float = 0.5
    repeated_weight: float = 0.5
    bridge_weight: float = 0.4
    cue_weight: float = 0.15
    rank_weight: float = 0.1
    max_overlap: float = 0.8

    def __post_init__(self) -> None:
        if self.max_sentences < 1:
            raise InvalidInput(f"max_sentences is {self.max_sentences}, expected 1 or more; 4 suits most questions")
        for name in self.__struct_fields__[1:]:
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise InvalidInput(f"{name} is {value}, expected 0 to 1; leave it out for the default")


_DEFAULTS = ExtractConfig()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sentence of a source that may become part of the answer.

    `order` is the place in reading order: documents by their best source, then position in the document. `context`
    are the words of the title and of the heading above.
    """

    source: int
    order: tuple[int, int]
    text: str
    words: frozenset[str]
    context: frozenset[str]

    @property
    def is_block(self) -> bool:
        """Whether the text spans lines, as code and lists do, and must be set apart from its neighbours."""
        return "\n" in self.text


async def extract(prompt: Prompt, *, config: ExtractConfig = _DEFAULTS) -> AsyncIterator[Delta]:
    """Answer with sentences of the sources, in reading order, each followed by its marker, one delta a sentence.

    A token of this generator is a word, or one character of Chinese, Japanese or Korean (`count_tokens`). Usage says
    0 prompt tokens, since no model reads the prompt, and as completion tokens what was written. An answer keeps to
    `prompt.max_tokens` by leaving out whole sentences from the end; only a first sentence that alone is too long is
    cut, after a word. Both finish with "length". Where no sentence answers, the answer says so in the question's
    language and finishes with "no_answer". A JSON schema cannot be followed without a model.

    Cancelling stops it at the next source or sentence; it holds nothing that needs closing.

    Args:
        prompt: The question and its sources; the messages are not read.
        config: How sentences are chosen.

    Raises:
        InvalidInput: The prompt asks for an answer that follows a JSON schema.

    Example:
        >>> source = Passage(chunk_id="a#0", document_id="a", title="", text="Rome is old.", start=0, end=12, score=1.0)
        >>> async def first(prompt):
        ...     return await anext(extract(prompt))
        >>> asyncio.run(first(Prompt(question="How old is Rome?", messages=(), sources=(source,), max_tokens=9)))
        Text(text='Rome is old. [1]')
    """
    if prompt.answer_schema is not None:
        raise InvalidInput(
            "the extractive generator cannot follow an answer schema; leave out answer_schema or choose a model"
        )
    candidates: dict[tuple[int, int], Candidate] = {}
    documents: dict[str, int] = {}
    for number, passage in enumerate(prompt.sources, start=1):
        document = documents.setdefault(passage.document_id, len(documents))
        for candidate in _candidates(passage, number, document):
            known = candidates.get(candidate.order)  # chunks that overlap share sentences, of which one may be cut
            if known is None or len(candidate.text) > len(known.text):
                candidates[candidate.order] = candidate
        await asyncio.sleep(0)  # reading a source takes about a millisecond; others may run between two
    chosen = choose(prompt.question, candidates.values(), config)
    if not chosen:
        text = no_answer(prompt.question)
        yield Text(text)
        yield Finish("no_answer", Usage(0, count_tokens([text])[0]), MODEL)
        return
    written, reason = 0, "stop"
    for piece in _pieces(chosen):
        tokens = count_tokens([piece])[0]
        if written + tokens > prompt.max_tokens:
            reason = "length"
            if written == 0:
                yield Text(_cut(piece, prompt.max_tokens))
                written = prompt.max_tokens
            break
        written += tokens
        yield Text(piece)
        await asyncio.sleep(0)
    yield Finish(reason, Usage(0, written), MODEL)


def count_tokens(texts: list[str]) -> list[int]:
    """Return the length of each text in tokens of this generator: words, and single CJK characters.

    >>> count_tokens(["Ray 2 runs. [1]", "光荣公司"])
    [4, 4]
    """
    return [sum(1 for _ in _TOKEN.finditer(text)) for text in texts]


def choose(question: str, candidates: Iterable[Candidate], config: ExtractConfig) -> list[Candidate]:
    """Return the candidates that answer `question`, in reading order; none when the best covers too little of it.

    Greedy maximisation of a coverage function with diminishing returns, after Lin and Bilmes, "A class of submodular
    functions for document summarization" (ACL 2011), with the redundancy cut of maximal marginal relevance (Carbonell
    and Goldstein, SIGIR 1998). A candidate's gain, given what is chosen already, is::

        sum over words w of the question of idf(w) * max(0, held(w) - repeated_weight * said(w))  /  sum of idf(w)
        + bridge_weight * (idf share of the chosen sentences' other words that it holds)
        + cue_weight * (it shows what the question asks for)  +  rank_weight / source

    held(w) is 1 when the sentence has the word, context_weight when only its title or heading has; said(w) is the
    most that a chosen one held; idf(w) = ln(1 + (N - n + 0.5) / (n + 0.5)) over the candidates at hand, so that a word
    of the question that no source has weighs most and makes an answer less likely. Choosing ends at max_sentences,
    when the best gain is below min_gain of the first, or when every word of the question is held.
    """
    selection = _Selection(question, list(candidates), config)
    first, at = selection.best()
    if at is None or selection.coverage(at) < config.min_coverage:
        return []
    gain = first
    while at is not None and gain >= config.min_gain * first:
        selection.take(at)
        if len(selection.chosen) == config.max_sentences or selection.says_all():
            break
        gain, at = selection.best()
    return sorted(selection.chosen, key=lambda candidate: candidate.order)


class _Selection:
    """The state of one greedy choice."""

    def __init__(self, question: str, candidates: list[Candidate], config: ExtractConfig) -> None:
        self._config = config
        asked = frozenset(content_words(question))
        self._idf = _inverse_frequencies(candidates, asked)
        self._asked = asked
        self._total = sum(self._idf[word] for word in asked)
        self._said: dict[str, float] = {}
        self._bridge: dict[str, float] = {}  # idf of the other words of what is chosen
        self._left: dict[int, tuple[Candidate, dict[str, float], float]] = {}  # with words held and fixed worth
        for at, (candidate, cue) in enumerate(zip(candidates, _cues(question, candidates), strict=True)):
            held = dict.fromkeys(asked & candidate.context, config.context_weight)
            held |= dict.fromkeys(asked & candidate.words, 1.0)
            if held:
                self._left[at] = (candidate, held, config.cue_weight * cue + config.rank_weight / candidate.source)
        self.chosen: list[Candidate] = []

    def coverage(self, at: int) -> float:
        """The share of the question's weight that a candidate holds."""
        return self._covered(self._left[at][1], 0.0)

    def best(self) -> tuple[float, int | None]:
        """The largest gain and whose it is; (0.0, None) when no candidate is left."""
        bridge_total = sum(self._bridge.values())
        best: float = 0.0
        place: int | None = None
        for at, (candidate, held, fixed) in self._left.items():
            gain = self._covered(held, self._config.repeated_weight) + fixed
            if bridge_total:
                known = self._bridge.keys() & candidate.words | self._bridge.keys() & candidate.context
                gain += self._config.bridge_weight * sum(self._bridge[word] for word in known) / bridge_total
            if gain > best:
                best, place = gain, at
        return best, place

    def says_all(self) -> bool:
        """Whether the chosen sentences, with titles and headings, hold every word of the question."""
        return self._said.keys() == self._asked

    def take(self, at: int) -> None:
        """Choose a candidate; what repeats it is left out from here on."""
        candidate, held, _ = self._left[at]
        self.chosen.append(candidate)
        for word, amount in held.items():
            self._said[word] = max(amount, self._said.get(word, 0.0))
        self._bridge |= {word: self._idf[word] for word in (candidate.words | candidate.context) - self._asked}
        self._left = {n: left for n, left in self._left.items() if not self._repeats(left[0], candidate)}

    def _covered(self, held: dict[str, float], repeated_weight: float) -> float:
        gains = (
            self._idf[word] * max(0.0, amount - repeated_weight * self._said.get(word, 0.0))
            for word, amount in held.items()
        )
        return sum(gains) / self._total

    def _repeats(self, other: Candidate, candidate: Candidate) -> bool:
        shorter = min(len(other.words), len(candidate.words))
        return len(other.words & candidate.words) >= self._config.max_overlap * shorter


def _inverse_frequencies(candidates: list[Candidate], asked: frozenset[str]) -> dict[str, float]:
    count = Counter(word for candidate in candidates for word in candidate.words | candidate.context)
    total = len(candidates)
    of_count = [math.log(1 + (total - n + 0.5) / (n + 0.5)) for n in range(total + 1)]
    return {word: of_count[count[word]] for word in asked | count.keys()}


def _cues(question: str, candidates: list[Candidate]) -> Iterator[bool]:
    shown = [pattern for asked, pattern in _CUES_COMPILED if asked.search(question)]
    known = question.lower()
    for candidate in candidates:
        found = (match[0].lower() for pattern in shown for match in pattern.finditer(candidate.text))
        yield any(text not in known for text in found)


def _candidates(passage: Passage, source: int, document: int) -> Iterator[Candidate]:
    title = frozenset(content_words(passage.title))
    heading: frozenset[str] = frozenset()
    for group in _groups(passage.text):
        start, end = group[0].start, group[-1].end
        text = passage.text[start:end]
        if group[0].kind is Kind.HEADING or _TABLE_HEADER.match(passage.text, end):
            heading = frozenset(content_words(text))
            continue
        if group[-1].kind not in _BLOCKS:
            text = " ".join(text.split())  # lines that were broken to fit a page
        words = frozenset(content_words(text))
        if words and text.rstrip("\"'”’)）」』")[-1] not in "?？":  # a question shares most words and answers nothing
            text = drop_markers(text)
            yield Candidate(source, (document, passage.start + start), text, words, title | heading)


def _groups(text: str) -> Iterator[list[Sentence]]:
    """Sentences, each alone but for lead-ins ("To install:"), which take along the code, list or table below."""
    group: list[Sentence] = []
    for sentence in split_sentences(text):
        if group and _belongs(text, group, sentence):
            group.append(sentence)
            continue
        if group:
            yield group
        group = [sentence]
    if group:
        yield group


def _belongs(text: str, group: list[Sentence], sentence: Sentence) -> bool:
    leads_in = text[group[0].end - 1] in ":：" and group[0].kind in {Kind.PROSE, Kind.ITEM}
    fits = sentence.end - group[0].start <= _LEAD_IN_CHARS
    return leads_in and fits and sentence.kind in _BLOCKS and (len(group) == 1 or sentence.kind is group[-1].kind)


def _pieces(chosen: list[Candidate]) -> Iterator[str]:
    before: Candidate | None = None
    for candidate in chosen:
        ends = before is not None and not before.is_block and before.text.rstrip("\"'”’)）」』")[-1:] in "。.!?！？"
        apart = "" if before is None else " " if ends and not candidate.is_block else "\n\n"
        yield f"{apart}{candidate.text}{chr(10) if candidate.text.endswith('```') else ' '}[{candidate.source}]"
        before = candidate


def _cut(piece: str, max_tokens: int) -> str:
    for count, token in enumerate(_TOKEN.finditer(piece), start=1):
        if count == max_tokens:
            return piece[: token.end()]
    return ""
