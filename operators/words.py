"""Reduces text to the words that carry its content, in the form in which they compare."""

from __future__ import annotations

import re
import unicodedata

CJK = "\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
"""Han, kana and hangul, as the inside of a character class."""

CJK_CHARACTER = re.compile(f"[{CJK}]")

_WORD = re.compile(rf"[{CJK}]+|\d+(?:[.,]\d+)*(?![^\W{CJK}])|[^\W{CJK}]+(?:[.'’][^\W{CJK}]+)*")
_ACCENTED = re.compile("[\u00c0-\u024f\u0300-\u036f\u0370-\u052f\u1e00-\u1fff]+")
_STOP_WORDS = frozenset(
    """
    a about above after again all also am an and any are as at be because been before being below between both but
    by can could did do does doing done during each either else for from had has have having he her here hers him
    his how i if in into is it its itself just many may me might more most much must my no nor not of off on once
    one only or other our out over own per same shall she should so some such than that the their them then there
    these they this those through to too under until up upon very was we were what when where whether which while
    who whom whose why will with within without would yes you your don't doesn't isn't it's s t
    """.split()  # noqa: SIM905 - a list of words is read and mended more easily so
)
_NUMBER_WORDS = {
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
    "eleven": "11",
    "twelve": "12",
}
_IRREGULAR = {
    form: base
    for base, forms in {
        "become": "became",
        "begin": "began begun",
        "break": "broke broken",
        "bring": "brought",
        "build": "built",
        "buy": "bought",
        "catch": "caught",
        "choose": "chose chosen",
        "come": "came",
        "draw": "drew drawn",
        "drive": "drove driven",
        "fall": "fell fallen",
        "fight": "fought",
        "fly": "flew flown",
        "get": "got gotten",
        "give": "gave given",
        "go": "went gone",
        "grow": "grew grown",
        "hold": "held",
        "keep": "kept",
        "know": "knew known",
        "lead": "led",
        "leave": "left",
        "lose": "lost",
        "make": "made",
        "mean": "meant",
        "meet": "met",
        "pay": "paid",
        "rise": "rose risen",
        "run": "ran",
        "say": "said",
        "see": "saw seen",
        "sell": "sold",
        "send": "sent",
        "sing": "sang sung",
        "speak": "spoke spoken",
        "spend": "spent",
        "steal": "stole stolen",
        "take": "took taken",
        "teach": "taught",
        "tell": "told",
        "think": "thought",
        "throw": "threw thrown",
        "wear": "wore worn",
        "win": "won",
        "write": "wrote written",
    }.items()
    for form in forms.split()
}
_STOP_CJK = re.compile(
    "什么时候|为什么|什么|怎么样|怎么|怎样|如何|为何|多少|何时|何地|何人|哪里|哪儿|哪些|哪个|哪|谁|几个|吗|呢|请问|"
    "以及|并且|或者|或|但是|因为|所以|如果|我们|你们|他们|她们|它们|这个|那个|这些|那些|"
    "[的了是在和与及也都就而且被把由于从对为之其这那着过吧啊呀]"
)


def content_words(text: str) -> list[str]:
    """Return the words of `text` that carry content, in order, as they compare: folded, stemmed, without stop words.

    Latin and other spaced scripts: lower case, accents and possessives off, steps 1 and 5a of Porter's stemmer (M. F.
    Porter, "An algorithm for suffix stripping", Program 14(3), 1980: plurals, -ed, -ing, final y and e), which is what
    sentences of the same matter differ in most; frequent irregular verbs go back to their base. Numbers lose the
    commas between thousands, and two to twelve become digits. Chinese, Japanese and Korean: overlapping bigrams of
    what stands between function words (single characters where only one stands), as Lucene's CJKBigramFilter does.

    >>> content_words("The 1,200 frames were hashed twice in Géza's tables.")
    ['1200', 'frame', 'hash', 'twice', 'geza', 'tabl']
    >>> content_words("光荣是哪年成立的？")
    ['光荣', '年成', '成立']
    """
    words: list[str] = []
    for token in _WORD.findall(_folded(text)):
        if CJK_CHARACTER.match(token):
            words += _bigrams(token)
        elif token[0].isdigit():
            words.append(_number(token))
        else:
            word = token.removesuffix("'s").removesuffix("’s")
            if word not in _STOP_WORDS:
                words.append(_NUMBER_WORDS.get(word) or _stem(_IRREGULAR.get(word, word)))
    return words


def is_number(word: str) -> bool:
    """Whether a content word states a quantity or a date in digits."""
    return word[0].isdigit() and word.replace(".", "").isdigit()


def is_chinese(text: str) -> bool:
    """Whether `text` is written in Chinese: it has Han characters, and no kana or hangul."""
    return bool(re.search("[\u4e00-\u9fff]", text)) and not re.search("[\u3040-\u30ff\uac00-\ud7af]", text)


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    composed = unicodedata.normalize("NFKC", text).casefold()
    return _ACCENTED.sub(lambda found: _without_accents(found[0]), composed)


def _without_accents(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


def _number(token: str) -> str:
    thousands = re.fullmatch(r"(\d{1,3}(?:,\d{3})+)(\.\d+)?", token)
    return token.replace(",", "") if thousands else token


def _bigrams(run: str) -> list[str]:
    found: list[str] = []
    for piece in _STOP_CJK.split(run):
        found += [piece[at : at + 2] for at in range(max(1, len(piece) - 1)) if piece]
    return found


def _stem(word: str) -> str:
    if len(word) < 3 or not (word.isascii() and word.isalpha()):
        return word
    word = _without_plural(word)
    if word.endswith("eed"):
        word = word[:-1] if _measure(word[:-3]) else word
    else:
        stem = word.removesuffix("ing") if word.endswith("ing") else word.removesuffix("ed")
        if stem != word and "v" in _shape(stem):
            word = _mended(stem)
    if word.endswith("y") and "v" in _shape(word[:-1]):
        return word[:-1] + "i"
    if word.endswith("e") and _measure(word[:-1]) + (not _is_short(word[:-1])) > 1:
        return word[:-1]
    return word


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _mended(stem: str) -> str:
    """Give a stem that lost -ed or -ing the ending that the bare verb has: hop(p)ed, creat(e)d, bas(e)d."""
    if stem.endswith(("at", "bl", "iz")) or (_measure(stem) == 1 and _is_short(stem)):
        return stem + "e"
    return stem[:-1] if stem[-2:-1] == stem[-1] and stem[-1] not in "aeioulsz" else stem


def _shape(stem: str) -> str:
    """One letter a letter: v for a vowel (y after a consonant is one), c for a consonant."""
    shape = ""
    for letter in stem:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(stem: str) -> int:
    """Porter's m: how often a vowel is followed by a consonant."""
    return _shape(stem).count("vc")


def _is_short(stem: str) -> bool:
    """Porter's *o: ends consonant, vowel, consonant, and the last is not w, x or y."""
    return _shape(stem).endswith("cvc") and stem[-1] not in "wxy"
