"""The planner: a question and its settings become a checked, typed plan, by rules alone."""

from __future__ import annotations

import math
import re
import unicodedata
from typing import Any, Final

import msgspec

from engine.errors import InvalidInput
from operators.corpus.measures import MEASURES
from operators.filter_parse import parse_filter
from operators.messages import HALF_CHARACTER, Leg, Plan, Question, Settings

LEGS: Final = ("dense", "lexical")  # in the order in which a plan lists them
MAX_QUESTION_CHARACTERS: Final = 10_000  # code points; more is a document pasted by mistake
MAX_LIMIT: Final = 1_000
MAX_CANDIDATES: Final = 10_000
MAX_WEIGHT: Final = 1_000_000
GUESSED_CHARACTERS: Final = 1_000  # the first ones tell the language, and keep the step light
KANA_SHARE: Final = 0.15  # of Han and kana together: Japanese has more, Chinese with a borrowed の has less

# One unit is a character where a script writes no spaces, else a word: "请解释 BERT" is 3 Han to 1 Latin.
_UNITS: Final = re.compile(
    "(?P<kana>[\u3041-\u309f\u30a0-\u30ff\u31f0-\u31ff\uff66-\uff9f])"
    "|(?P<zh>[\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff])"
    "|(?P<th>[\u0e00-\u0e7f])"
    "|(?P<ko>[\u1100-\u11ff\u3130-\u318f\uac00-\ud7af]+)"
    "|(?P<ru>[\u0400-\u052f]+)"
    "|(?P<el>[\u0370-\u03ff\u1f00-\u1fff]+)"
    "|(?P<ar>[\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufefe]+)"
    "|(?P<he>[\u0590-\u05ff]+)"
    "|(?P<hi>[\u0900-\u097f]+)"
    "|(?P<en>[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+)"
)
_LATIN: Final = re.compile("[A-Za-z]")
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(-[a-z0-9]{2,8})*", re.IGNORECASE)


class PlanConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the planner knows of the models.

    Args:
        dense_languages: Languages that the embedder was made for, as ISO 639-1 codes; none listed means any.
        foreign_weight: Factor of the dense leg's weight for a question in another language, when there is another leg.
            0.02 lets words decide and vectors order only what words leave open. Measured with the packaged English
            embedder on 403 Chinese questions (CMRC 2018), recall@1: 0.48 at 1, 0.91 at 0.05, words alone 0.97.
        score_threshold: Least semantic score for questions that name none; it needs the dense leg, so a question that
            leaves that out is not held to it.
    """

    dense_languages: tuple[str, ...] = ()
    foreign_weight: float = 0.02
    score_threshold: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.foreign_weight <= 1:
            raise InvalidInput(f"foreign_weight is {self.foreign_weight}; expected 0 to 1")


_ANY: Final = PlanConfig()


def plan_question(question: Question, *, config: PlanConfig = _ANY) -> Plan:
    r"""Check a question and its settings, and say what later steps shall do.

    A leg of weight 0 is left out. The strategy is "hybrid", or the name of the only leg. The text is brought to
    Unicode's composed form (NFC), with every run of white space made one space.

    Args:
        question: What a person asked.
        config: What the models are good for.

    Returns:
        The plan; its legs are in the order of `LEGS`, so that equal settings give equal plans.

    Raises:
        InvalidInput: The text is empty, too long or not text, or a setting is out of its range.

    Example:
        >>> plan = plan_question(Question("  Who built\n the mill? "))
        >>> plan.question, plan.strategy, plan.language
        ('Who built the mill?', 'hybrid', 'en')
    """
    text, settings = normalize_question(question.text), question.settings
    _check_counts(settings)
    filters = parse_filter(settings.filters)
    language = _language(settings.language) or guess_language(text)
    legs = _for_language(_legs(settings), language, config)
    return Plan(
        question=text,
        strategy="hybrid" if len(legs) > 1 else legs[0].name,
        legs=legs,
        limit=settings.limit,
        rerank_candidates=settings.rerank_candidates,
        language=language,
        filters=filters,
        scope_prefix=_clean("scope_prefix", settings.scope_prefix),
        offset=settings.offset,
        candidates=settings.candidates,
        score_threshold=_threshold(settings, config),
        ef_search=settings.ef_search,
        measure=settings.measure,
        include_scores=settings.include_scores,
        include_metadata=settings.include_metadata,
        max_answer_tokens=settings.max_answer_tokens,
        answer_schema=settings.answer_schema,
    )


def normalize_question(text: str) -> str:
    """The question composed (NFC) and with single spaces.

    Raises:
        InvalidInput: It is blank (nothing visible in it), longer than `MAX_QUESTION_CHARACTERS`, or holds NUL or half
            a character.
    """
    checked = _clean("question", text, limit=MAX_QUESTION_CHARACTERS)
    if not any(character.isprintable() and not character.isspace() for character in checked):
        raise InvalidInput("the question is empty; ask something")
    return " ".join(unicodedata.normalize("NFC", checked).split())


def guess_language(text: str) -> str:
    """The language of `text` by its script, as an ISO 639-1 code; "" when it holds no letter that is known here.

    Counted are, in the first `GUESSED_CHARACTERS`, characters of scripts without spaces (Han, kana, Thai) and words of
    all others. The script with most of them wins; on a tie one that is not Latin, since who writes it reads it. Kana
    and Han count together: Japanese if kana make up `KANA_SHARE` of them, else Chinese. A script stands for its most
    written language: Latin letters are called English, Cyrillic Russian, whatever they spell; a person who cares sets
    `Settings.language`.

    Example:
        >>> guess_language("请解释 BERT"), guess_language("ねこは何歳まで生きる？"), guess_language("What is a mill?")
        ('zh', 'ja', 'en')
    """
    if text.isascii():  # most questions, told at once
        return "en" if _LATIN.search(text, 0, GUESSED_CHARACTERS) else ""
    counts = dict.fromkeys(_UNITS.groupindex, 0)
    for unit in _UNITS.finditer(text, 0, GUESSED_CHARACTERS):
        counts[str(unit.lastgroup)] += 1
    kana = counts.pop("kana")
    cjk = kana + counts.pop("zh")
    counts = {"ja" if kana and kana >= KANA_SHARE * cjk else "zh": cjk, **counts}  # Latin stays last: it loses ties
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else ""


def _for_language(legs: tuple[Leg, ...], language: str, config: PlanConfig) -> tuple[Leg, ...]:
    """The legs, the dense one weighed down when the embedder does not read the question's language."""
    if not config.dense_languages or language in ("", *config.dense_languages) or len(legs) == 1:
        return legs
    factors = {"dense": config.foreign_weight}
    weighed = (msgspec.structs.replace(leg, weight=leg.weight * factors.get(leg.name, 1.0)) for leg in legs)
    return tuple(leg for leg in weighed if leg.weight > 0)


def _legs(settings: Settings) -> tuple[Leg, ...]:
    unknown = sorted(set(settings.legs) - set(LEGS))
    if unknown:
        raise InvalidInput(f"there is no leg named {', '.join(map(repr, unknown))}; there are {', '.join(LEGS)}")
    for name, weight in settings.legs.items():
        if not _is_number(weight) or not 0 <= weight <= MAX_WEIGHT:  # NaN fails both comparisons
            raise InvalidInput(f"the weight of leg {name!r} is {weight!r}; expected 0 (left out) to {MAX_WEIGHT:,}")
    legs = tuple(
        Leg(name=name, weight=float(settings.legs[name]), limit=_candidates(settings))
        for name in LEGS
        if settings.legs.get(name)
    )
    if not legs:
        raise InvalidInput(f"no leg is left to search with; give one of {', '.join(LEGS)} a weight above 0")
    return legs


def _candidates(settings: Settings) -> int:
    """Hits that each leg fetches: as configured, or doubled until they reach the end of a later page."""
    return settings.candidates << (-(-(settings.offset + settings.limit) // settings.candidates) - 1).bit_length()


def _check_counts(settings: Settings) -> None:
    _check_between("limit", settings.limit, 1, MAX_LIMIT)
    _check_between("candidates", settings.candidates, 1, MAX_CANDIDATES)
    _check_between("offset", settings.offset, 0, MAX_CANDIDATES)
    _check_between("ef_search", settings.ef_search, 0, MAX_CANDIDATES)
    if settings.measure and settings.measure not in MEASURES:
        raise InvalidInput(f"measure is {settings.measure!r}; expected one of {', '.join(MEASURES)}")
    _check_between("rerank_candidates", settings.rerank_candidates, 0, MAX_CANDIDATES)
    if settings.candidates < settings.limit:
        raise InvalidInput(
            f"candidates is {settings.candidates}, limit is {settings.limit}: each leg must fetch at least as many "
            f"hits as are returned; raise candidates to {settings.limit} or lower limit"
        )
    if not _is_whole(settings.max_answer_tokens) or settings.max_answer_tokens < 1:
        raise InvalidInput(f"max_answer_tokens is {settings.max_answer_tokens!r}; expected a whole number from 1")


def _check_between(name: str, value: Any, low: int, high: int) -> None:
    if not _is_whole(value) or not low <= value <= high:
        raise InvalidInput(f"{name} is {value!r}; expected a whole number from {low} to {high}")


def _threshold(settings: Settings, config: PlanConfig) -> float | None:
    """The question's own threshold, else the corpus's where it can be applied."""
    wanted, has_dense = settings.score_threshold, bool(settings.legs.get("dense"))
    if wanted is None:
        return config.score_threshold if has_dense else None
    if not _is_number(wanted) or not math.isfinite(wanted):
        raise InvalidInput(f"score_threshold is {wanted!r}; expected a finite number, or none at all")
    if not has_dense:
        raise InvalidInput(
            f"score_threshold is {wanted} and the dense leg is left out: semantic scores come from it; "
            "give it a weight above 0, or leave the threshold out"
        )
    return float(wanted)


def _language(code: Any) -> str:
    if code == "" or (isinstance(code, str) and _LANGUAGE.fullmatch(code)):
        return str(code).lower()
    raise InvalidInput(f'language is {code!r}; expected a code such as "en" or "zh", or "" to have it guessed')


def _clean(name: str, text: Any, *, limit: int | None = None) -> str:
    """`text` itself, if it is a text that every later step can hold: Lucene, JSON and file names refuse NUL."""
    if not isinstance(text, str):
        raise InvalidInput(f"the {name} is a {type(text).__name__}; expected a text")
    if limit is not None and len(text) > limit:
        raise InvalidInput(f"the {name} is {len(text):,} characters long; at most {limit:,} are read: shorten it")
    if "\0" in text:
        raise InvalidInput(f"the {name} holds a NUL character; remove it")
    if HALF_CHARACTER.search(text):
        raise InvalidInput(f"the {name} holds half a character (a lone surrogate); decode it as UTF-8")
    return text


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
