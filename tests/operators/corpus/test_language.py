"""Words are found in their other forms, in English and Chinese alike, and names of programmers by their parts."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from operators.corpus.lexical import LexicalIndex
from operators.corpus.manifest import CorpusConfig

DECOMPOSED = "cafe\u0301"
WIDE = "".join(chr(ord(character) + 0xFEE0) for character in "C++ABC".replace(" ", ""))


class Library:
    """An index whose documents are numbered texts."""

    def __init__(self, folder: Path) -> None:
        self.index = LexicalIndex(folder, CorpusConfig(embedder="test", dimension=2), writable=True)

    def holds(self, *texts: str) -> None:
        self.index.clear()
        for number, text in enumerate(texts):
            self.index.add(str(number), [number], [""], [text])
        self.index.refresh()

    def found(self, question: str) -> list[int]:
        keys, _ = self.index.search(question, None, 10)
        return keys.tolist()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    made = Library(tmp_path_factory.mktemp("language"))
    yield made
    made.index.close()


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("running foxes", "the fox runs"),
        ("Obama's", "obama spoke"),
        ("cafe", "Café Müller"),
        ("CAFÉ", "a cafe"),
        ("café", f"le {DECOMPOSED} ferme"),
        (DECOMPOSED, "a cafe"),
        ("naïve", "NAIVE"),
        ("Muller Strasse", "Müller, Straße 5"),
        ("ελλαδα", "Η ΕΛΛΆΔΑ"),
        ("ΟΔΟΣ", "η οδός"),
        ("ἀρχή", "εν αρχη"),
        ("елка", "новогодняя Ёлка"),
        ("РАИОН", "новый район"),
        ("ЁЛКИ", "две елки"),
        ("замок", "старый за\u0301мок"),
        ("fine", "a \ufb01ne ligature"),
        ("cooperate", "they co\u00adoperate"),
        ("O'Brien", "signed by O’Brien"),
        ("OBrien", "signed by O'Brien"),
        ("USA", "in the U.S.A. only"),
        ("pretraining", "masked pre-training of language models"),
        ("pre-training", "masked pretraining of language models"),
        ("email", "send an e-mail"),
        ("1000000", "a prize of 1,000,000 crowns"),
        ("ABC", "ＡＢＣ"),
        (WIDE, "written in C++ABC"),
        ("😀", "smile 😀 please"),
        ("猫", "我的猫在家"),
        ("北京大学", "他在北京大学读书"),
        ("臺灣大學", "台湾大学的学生"),
        ("台湾", "國立臺灣大學"),
        ("BERT 模型", "预训练BERT模型的方法"),
        ("BERT模型", "BERT 模型"),
        ("100 人", "共有100，200人参加"),
        ("人々", "町の人々が集まる"),
        ("ﾃｽﾄ", "テスト"),
        ("東京", "東京タワーに登る"),
        ("タワー", "東京タワーに登る"),
        ("サーバ", "サーバーを再起動する"),
        ("食べる", "パンを食べるとき"),
        ("한국어", "한국어 문서"),
        ("학교", "학교에서 만나요"),
        ("집", "집 앞에서"),
    ],
)
def test_words_are_found_in_their_other_forms(library: Library, question: str, text: str) -> None:
    library.holds("unrelated 完全 words", text)
    assert library.found(question) == [1]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("unique_philosopher", ["unique", "philosopher", "unique philosopher", "uniquePhilosopher"]),
        ("getUserName", ["user name", "get", "get_user_name", "getusername", "GetUserName"]),
        ("user_id", ["user", "id", "userId", "USER_ID"]),
        ("snake_case_name", ["snake", "case", "snakeCaseName"]),
        ("__init__", ["init"]),
        ("HTTPServer", ["http", "server", "http_server"]),
        ("parseXMLFile", ["xml", "file", "parse_xml_file"]),
        ("v2.15.2", ["2.15.2"]),
        ("2.15.2", ["v2.15.2"]),
        ("python3.11", ["python", "3.11"]),
        ("python3", ["python"]),
        ("node.js", ["node", "js", "nodejs"]),
        ("example.com", ["example"]),
        ("os.path.join", ["path", "join"]),
        ("C++", ["C++17", "c++"]),
        ("C#", ["c#", "C#7"]),
        (".NET", [".net", "net"]),
        (".gitignore", ["gitignore"]),
        ("Notepad++", ["notepad"]),
        ("AT&T", ["att"]),
        ("CVE-2021-44228", ["44228", "cve 2021 44228"]),
    ],
)
def test_names_of_programmers_are_found_whole_and_by_their_parts(library: Library, name: str, parts: list[str]) -> None:
    library.holds(f"about {name}, in short", "nothing of that", f"用{name}写程序")
    for question in (name, f"What is {name}?", f"{name}是什么", *parts):
        assert {0, 2} <= set(library.found(question)), question
        assert 1 not in library.found(question), question


def test_a_name_ranks_above_its_parts(library: Library) -> None:
    library.holds("get the user name", "call getUserName", "the net is wide", "the .NET runtime", "a user id")
    assert library.found("getUserName")[:2] == [1, 0]
    assert library.found(".NET")[0] == 3


@pytest.mark.parametrize(
    ("question", "other"),
    [("C", "C++ and C#"), ("C++", "C and C#"), ("C#", "C and C++"), ("2.15", "v2.15.2"), ("15", "v2.15.2")],
)
def test_what_is_another_thing_is_not_found(library: Library, question: str, other: str) -> None:
    library.holds(f"only {other} here")
    assert library.found(question) == []


@pytest.mark.parametrize(
    ("question", "wanted"),
    [
        ("to be or not to be", "To be, or not to be: that is the question"),
        ("The The", "The The, a band"),
        ("IT", "he works in IT"),
        ("What is the IT department?", "the IT department"),
        ("C", "written in C"),
        ("R", "written in R"),
        ("it", "let it be"),
    ],
)
def test_stop_words_are_found_when_they_are_what_is_asked(library: Library, question: str, wanted: str) -> None:
    library.holds("dogs run", wanted)
    assert library.found(question) == [1]


def test_stop_words_find_nothing_beside_other_words(library: Library) -> None:
    library.holds("the end of it", "a mill")
    assert library.found("Where is the mill of it?") == [1]


def test_chinese_words_of_several_characters_do_not_find_their_characters(library: Library) -> None:
    library.holds("大家学习", "北京大学")
    assert library.found("大学") == [1]


def test_a_very_long_name_is_no_trouble(library: Library) -> None:
    library.holds("a_b" * 5_000, "x" * 50_000 + " end")
    assert library.found("end") == [1]


def test_simplified_characters_are_not_traditional_ones_again() -> None:
    source = Path(__file__).parents[3] / "operators/corpus/java/simplified.txt"
    text = re.sub("#.*\n|\n", "", source.read_text(encoding="utf-8"))
    table = dict(zip(text[::2], text[1::2], strict=True))
    assert len(text) == 2 * len(table)
    assert not table.keys() & set(table.values()), "one step must do"
    assert (table["學"], table["臺"]) == ("学", "台")
