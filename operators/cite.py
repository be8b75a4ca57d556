"""Links each sentence of an answer to the source that supports it, while the answer streams.

The answer passes two machines. `MarkerFilter` lets the generated text through, but for markers that name no source;
`_Citer` cuts what came through into sentences and looks for the evidence of each. Both decide by what the text is,
never by how it was split into deltas.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator, Sequence

import msgspec

from engine.errors import InvalidInput, StreamError
from operators.markers import MarkerFilter
from operators.messages import Answer, Citation, Delta, Event, Finish, Passage, Prompt, Text, Usage
from operators.sentences import Kind, settled_sentences, split_sentences
from operators.words import content_words, is_chinese, is_number

NO_ANSWER = {
    "en": "I don't have enough information to answer that question.",
    "zh": "我没有足够的信息来回答这个问题。",
}
"""What is said, by language, when there is no source or none answers."""


class CiteConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a passage supports a sentence.

    Args:
        min_claimed_support: Support that confirms a marker the model wrote, 0 to 1. Lower than the other, since the
            marker is evidence of its own and one sentence may draw on several sources.
        min_support: Support from which a passage is cited that no marker named, 0 to 1.

    Raises:
        InvalidInput: A value is out of its range.
    """

    min_claimed_support: float = 0.3
    min_support: float = 0.6

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0 < getattr(self, name) <= 1:
                raise InvalidInput(f"{name} is {getattr(self, name)}, expected above 0 and at most 1")


_DEFAULTS = CiteConfig()


def no_answer(question: str, language: str = "") -> str:
    """Return the fixed sentence that says that there is no answer, in `language` or else the question's own."""
    return NO_ANSWER.get(language[:2].lower() or ("zh" if is_chinese(question) else "en"), NO_ANSWER["en"])


async def no_sources(prompt: Prompt) -> AsyncIterator[Delta]:
    """What is generated for a prompt without sources: the fixed sentence, for which no model was called."""
    yield Text(no_answer(prompt.question))
    yield Finish("no_sources", Usage(0, 0), "")


async def cite(prompt: Prompt, deltas: AsyncIterator[Delta], *, config: CiteConfig = _DEFAULTS) -> AsyncIterator[Event]:
    """Pass on an answer's text with the citations of each sentence, and end with the one whole `Answer`.

    Markers are brackets ([ ], 【 】, ［ ］) around numbers, lists or ranges of them, or hexadecimal ids; see
    `operators.markers.MARKER`. Those that name a source stay as written. What names none never reaches the reader:
    the number is dropped from its bracket, or the bracket from the text with the blank that would be doubled. No
    markers are: links ([1](url)), brackets in code spans and blocks, indices (`x[1]`, `user_id[2]`, `items[0]`:
    attached to a name that is one letter, has an underscore, digit or inner capital, or with index 0), lists with
    a 0 among others ([0, 1] is an interval), and numbers of four digits (years).

    A sentence's support by a passage is the share of its distinct content words that the passage or its title holds:
    |words(sentence) & words(passage)| / |words(sentence)|. It is linked to each source whose marker it carries and
    that supports it by `min_claimed_support`; all numbers in it must stand in those sources. Else to the best passage
    that supports it by `min_support` and has all its numbers, the first of equals. Else it is unsupported. Headings,
    lead-ins ("The steps:"), sentences without content words and the fixed sentence of `no_answer` claim nothing and
    are neither. An answer that is only that sentence finishes with "no_answer".

    An answer under a JSON schema passes untouched. It is one claim, made by the strings in it, and has at most one
    citation, over the whole text; when it is no JSON (cut by its length) it is unsupported.

    Text comes as soon as it is decided; held back are open brackets, unclosed code spans and trailing blanks.
    Citations of a sentence come when the next one has begun beyond doubt, its text split there if need be, so that
    they follow their sentence. Cancelling or closing this closes `deltas`.

    A prompt without sources is answered by `no_sources`; then `deltas` is not read.

    Args:
        prompt: The prompt that was answered: its sources are what markers count.
        deltas: Text deltas and one last Finish.
        config: Thresholds of support.

    Yields:
        Text and Citation, and at last one Answer, whose text is the concatenated Text.

    Raises:
        StreamError: `deltas` ended without Finish, or went on after it.

    Example:
        >>> import asyncio
        >>> source = Passage(chunk_id="a#0", document_id="a", title="", text="Rome is old.", start=0, end=12, score=1.0)
        >>> async def spoken():
        ...     yield Text("Rome is old [1][7].")
        ...     yield Finish("stop", Usage(9, 8), "model")
        >>> async def last(prompt):
        ...     return [event async for event in cite(prompt, spoken())][-1]
        >>> answer = asyncio.run(last(Prompt(question="?", messages=(), sources=(source,), max_tokens=9)))
        >>> answer.text, answer.citations[0].source, answer.citations[0].support
        ('Rome is old [1].', 1, 1.0)
    """
    if not prompt.sources:
        deltas = no_sources(prompt)  # the generator's stream is never opened, so no model is called
    citer = _JsonCiter(prompt, config) if prompt.answer_schema is not None else _Citer(prompt, config)
    finish: Finish | None = None
    try:
        async for delta in deltas:
            if finish is not None:
                raise StreamError("the generator went on after its Finish; yield Finish last and once")
            if isinstance(delta, Finish):
                finish = delta
                continue
            for event in citer.feed(delta.text):
                yield event
            citer.evidence.read_on()
    finally:
        close = getattr(deltas, "aclose", None)
        if close is not None:
            await close()
    if finish is None:
        raise StreamError("the generator ended without a Finish; yield one even when the answer is empty")
    for event in citer.end(finish):
        yield event


class _Evidence:
    """The content words of each source, and what they support.

    Reading a source takes about a millisecond, so they are read one a delta while the first sentence streams.
    """

    def __init__(self, sources: Sequence[Passage], config: CiteConfig) -> None:
        self._sources = sources
        self._words: list[frozenset[str]] = []  # of the sources read so far
        self._config = config

    def read_on(self) -> bool:
        """Read one source more; whether there was one."""
        if len(self._words) == len(self._sources):
            return False
        source = self._sources[len(self._words)]
        self._words.append(frozenset(content_words(f"{source.title}\n{source.text}")))
        return True

    def citations(self, span: tuple[int, int], text: str, claimed: Sequence[int]) -> list[Citation]:
        """The citations of a span whose text without markers is `text`; none when nothing supports it."""
        while self.read_on():
            pass
        words = frozenset(content_words(text))
        numbers = {word for word in words if is_number(word)}
        support = [len(words & held) / len(words) if words else 0.0 for held in self._words]
        confirmed = [n for n in claimed if support[n - 1] >= self._config.min_claimed_support]
        if not numbers <= frozenset[str]().union(*(self._words[n - 1] for n in confirmed)):
            confirmed = []
        if not confirmed:
            fitting = [n for n, held in enumerate(self._words, start=1) if numbers <= held]
            best = max(fitting, default=None, key=lambda n: support[n - 1])
            confirmed = [best] if best is not None and support[best - 1] >= self._config.min_support else []
        return [self._citation(span, n, support[n - 1]) for n in confirmed]

    def _citation(self, span: tuple[int, int], number: int, support: float) -> Citation:
        source = self._sources[number - 1]
        return Citation(span[0], span[1], number, source.chunk_id, source.document_id, support)


class _Citer:
    """Turns text as it comes into Text and Citation events, and at the end into the Answer."""

    def __init__(self, prompt: Prompt, config: CiteConfig) -> None:
        self._prompt = prompt
        self.evidence = _Evidence(prompt.sources, config)
        self._markers = MarkerFilter(len(prompt.sources))
        self._shown = 0  # code points passed on
        self._cited = 0  # end of the last sentence that was looked at
        self._block = 0  # start of a line from which sentences can be told without what is above
        self._citations: list[Citation] = []
        self._unsupported: list[tuple[int, int]] = []

    def feed(self, text: str) -> Iterator[Event]:
        if self._markers.feed(text):
            yield from self._advance(final=False)

    def end(self, finish: Finish) -> Iterator[Event]:
        self._markers.flush()
        yield from self._advance(final=True)
        yield self._answer(self._markers.text, finish)

    def _answer(self, text: str, finish: Finish) -> Answer:
        refused = finish.reason == "stop" and text.strip() in NO_ANSWER.values()
        return Answer(
            text=text,
            citations=tuple(self._citations),
            unsupported=tuple(self._unsupported),
            sources=self._prompt.sources,
            finish_reason="no_answer" if refused else finish.reason,
            usage=finish.usage,
            model=finish.model,
            template=self._prompt.template,
            invented_markers=self._markers.invented,
            partial=self._prompt.partial,
        )

    def _advance(self, *, final: bool) -> Iterator[Event]:
        text = self._markers.text
        if final or _MAY_END.search(text, self._cited):
            tail = text[self._block :]
            base = self._block
            for sentence in split_sentences(tail) if final else settled_sentences(tail):
                start, end = base + sentence.start, base + sentence.end
                if start < self._cited:
                    continue
                if "\n\n" in text[self._cited : start]:
                    self._block = text.rfind("\n", 0, start) + 1
                self._cited = end
                yield from self._show(end)
                yield from self._link(start, end, sentence.kind)
        yield from self._show(len(text))

    def _show(self, end: int) -> Iterator[Text]:
        if end > self._shown:
            start, self._shown = self._shown, end
            yield Text(self._markers.text[start:end])

    def _link(self, start: int, end: int, kind: Kind) -> Iterator[Citation]:
        marks = [mark for mark in self._markers.marks if start <= mark.start < end]
        claim = self._markers.text[start:end]
        for mark in reversed(marks):
            claim = claim[: mark.start - start] + " " + claim[mark.end - start :]
        claimed = tuple(dict.fromkeys(n for mark in marks for n in mark.sources))
        if kind is Kind.HEADING or claim.strip() in NO_ANSWER.values() or not content_words(claim):
            return
        found = self.evidence.citations((start, end), claim, claimed)
        self._citations += found
        if not found and not claim.rstrip().endswith((":", "：")):
            self._unsupported.append((start, end))
        yield from found


_MAY_END = re.compile(r"[.!?。！？｡\n]")


class _JsonCiter(_Citer):
    """The same for JSON, which passes as it is."""

    def feed(self, text: str) -> Iterator[Event]:
        self._markers.text += text
        yield Text(text)

    def end(self, finish: Finish) -> Iterator[Event]:
        text = self._markers.text
        span = (0, len(text))
        words = " ".join(_strings(text))
        self._citations = self.evidence.citations(span, words, ())
        if not self._citations and text.strip():
            self._unsupported = [span]
        yield from self._citations
        yield self._answer(text, finish)


def _strings(text: str) -> Iterator[str]:
    """The string values in a JSON text; none when it is not JSON."""
    try:
        left = [msgspec.json.decode(text)]
    except msgspec.DecodeError:
        return
    while left:
        value = left.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            left += value.values()
        elif isinstance(value, list):
            left += value
