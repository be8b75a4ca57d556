"""Readers: which files are found, what is made of them, what is skipped and why."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import pytest

from engine.errors import InvalidInput
from operators.messages import Document, Skipped
from operators.read import ReadConfig, Source, find_sources, read_documents

DOCX_PARTS = {
    "[Content_Types].xml": (
        '<Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types">'
        '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
        '<Default Extension="xml" ContentType="application/xml"/><Override PartName="/word/document.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.wordprocessingml.document.main+xml"/></Types>'
    ),
    "_rels/.rels": (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/officeDocument" '
        'Target="word/document.xml"/></Relationships>'
    ),
    "word/styles.xml": (
        '<w:styles xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:style w:type="paragraph" '
        'w:styleId="Heading1"><w:name w:val="heading 1"/></w:style></w:styles>'
    ),
    "word/_rels/document.xml.rels": (
        '<Relationships xmlns="http://schemas.openxmlformats.org/package/2006/relationships"><Relationship Id="rId1" '
        'Type="http://schemas.openxmlformats.org/officeDocument/2006/relationships/styles" Target="styles.xml"/>'
        "</Relationships>"
    ),
    "word/document.xml": (
        '<w:document xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body>'
        '<w:p><w:pPr><w:pStyle w:val="Heading1"/></w:pPr><w:r><w:t>Minutes</w:t></w:r></w:p>'
        "<w:p><w:r><w:t>The budget was agreed.</w:t></w:r></w:p></w:body></w:document>"
    ),
}


def pdf(words: str) -> bytes:
    """A PDF of one page with one line."""
    stream = f"BT /F1 24 Tf 72 700 Td ({words}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    body, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, 1):
        places.append(len(body))
        body += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"xref\n0 6\n0000000000 65535 f \n%strailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
    return body + trailer % (table, len(body))


def docx(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in DOCX_PARTS.items():
            archive.writestr(name, content)


def put(folder: Path, **files: str | bytes) -> None:
    """Write files; `__` in a name is a folder, `_` a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def read(path: Path, config: ReadConfig | None = None) -> list[Document | Skipped]:
    return [
        result
        for source in find_sources([path])
        for result in ([source] if isinstance(source, Skipped) else read_documents(source, config))
    ]


def one(path: Path, config: ReadConfig | None = None) -> Document:
    (document,) = read(path, config)
    assert isinstance(document, Document), document
    return document


def reason(path: Path, config: ReadConfig | None = None) -> str:
    (skipped,) = read(path, config)
    assert isinstance(skipped, Skipped), skipped
    assert skipped.path == str(path)
    return skipped.reason


def ids(*paths: Path) -> list[str]:
    return [source.id for source in find_sources(paths) if isinstance(source, Source)]


def test_files_come_in_the_order_of_their_names_with_ids_from_the_folder_that_was_named(tmp_path: Path) -> None:
    put(tmp_path / "docs", b_md="b", a_txt="a", sub__c_md="c", sub__deep__d_rst="d", another__e_py="e")
    expected = ["docs/a.txt", "docs/b.md", "docs/another/e.py", "docs/sub/c.md", "docs/sub/deep/d.rst"]
    assert ids(tmp_path / "docs") == expected


def test_the_id_does_not_depend_on_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "docs", a_md="a")
    monkeypatch.chdir(tmp_path / "docs")
    assert ids(Path()) == ids(Path("../docs")) == ids(tmp_path / "docs") == ["docs/a.md"]
    assert ids(Path("a.md")) == ["a.md"]


def test_hidden_files_caches_and_environments_are_passed_over(tmp_path: Path) -> None:
    root = tmp_path / "docs"
    put(root, a_md="a", node_modules="x")  # a file "node.modules", which is one like any other
    for folder in (".git", "__pycache__", "node_modules", "venv", "myenv"):
        (root / folder).mkdir()
        (root / folder / "x.md").write_text("x")
    (root / "myenv" / "pyvenv.cfg").touch()
    (root / ".hidden.md").write_text("x")
    assert ids(root) == ["docs/a.md", "docs/node.modules"]


def test_a_hidden_folder_that_is_named_is_read(tmp_path: Path) -> None:
    put(tmp_path / ".notes", a_md="a")
    assert ids(tmp_path / ".notes") == [".notes/a.md"]


def test_a_path_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"nowhere' does not exist"):
        find_sources([tmp_path / "nowhere"])


def test_an_empty_folder_is_refused_and_told_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".git").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="holds nothing to read.*Markdown.*PDF"):
        find_sources([tmp_path])


def test_no_paths_are_refused() -> None:
    with pytest.raises(InvalidInput, match="give files or folders"):
        find_sources([])


def test_a_file_reached_twice_is_read_once(tmp_path: Path) -> None:
    put(tmp_path / "docs", a_md="a", b_md="b")
    assert ids(tmp_path / "docs", tmp_path / "docs" / "a.md") == ["docs/a.md", "docs/b.md"]


def test_two_files_never_share_an_id(tmp_path: Path) -> None:
    put(tmp_path, one__docs__a_md="a", two__docs__a_md="b")
    found = list(find_sources([tmp_path / "one" / "docs", tmp_path / "two" / "docs"]))
    assert [type(source) for source in found] == [Source, Skipped]
    assert "name a folder that holds both" in found[1].reason


def test_a_link_to_a_folder_is_told_not_followed(tmp_path: Path) -> None:
    put(tmp_path / "docs", a_md="a")
    (tmp_path / "docs" / "loop").symlink_to(tmp_path / "docs")
    found = list(find_sources([tmp_path / "docs"]))
    assert [type(source) for source in found] == [Source, Skipped]


@pytest.mark.parametrize(
    ("name", "text", "title"),
    [
        ("guide.md", "Intro.\n\n## First *head*\n\n# Second", "First *head*"),
        ("guide.md", "No heading here.", "guide"),
        ("guide.rst", "Title\n=====\n\nText.", "Title"),
        ("notes 2024.txt", "Just text.", "notes 2024"),
        ("tool.py", "# comment\nx = 1", "tool.py"),
        ("data.csv", "# a,b\n1,2", "data"),
        ("Makefile", "# all\nall:\n", "Makefile"),
    ],
)
def test_the_title_is_the_first_heading_or_the_name(tmp_path: Path, name: str, text: str, title: str) -> None:
    (tmp_path / name).write_text(text)
    document = one(tmp_path / name)
    assert (document.title, document.text, document.id) == (title, text, name)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-be", "utf-32", "gb18030", "cp1252", "shift_jis", "big5"]
)
def test_text_is_read_in_its_encoding(tmp_path: Path, encoding: str) -> None:
    texts = {
        "gb18030": "北京大学创办于一八九八年，初名京师大学堂，是中国第一所国立综合性大学。" * 3,
        "big5": "國立臺灣大學是一所位於臺灣臺北市的研究型大學，前身為日治時期的臺北帝國大學。" * 3,
        "shift_jis": "東京大学は、東京都文京区に本部を置く日本の国立大学である。通称は東大。" * 3,
    }
    text = texts.get(encoding, "Le café naïve était fermé à Noël, où les élèves rêvaient déjà d'été.\n" * 3)
    data = text.encode(encoding)
    (tmp_path / "a.txt").write_bytes(b"\xfe\xff" + data if encoding == "utf-16-be" else data)
    assert one(tmp_path / "a.txt").text == text


def test_line_endings_become_newlines_and_nothing_else_changes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"  a\r\n\tb\rc \n\n")
    assert one(tmp_path / "a.txt").text == "  a\n\tb\nc \n\n"


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.png", b"\x89PNG\r\n\x1a\n\0\0\0", "a binary file (.png), not text; export it"),
        ("a.txt", b"text \0 text", "a binary file (.txt)"),
        ("late.txt", b"x" * 100_000 + b"\0", "a binary file"),
        ("a.md", b"", "no text in it"),
        ("a.md", b" \n\t\n", "no text in it"),
        ("a.txt", b"\xff\xfe\x00", "begins like utf-16 but is not"),
        ("a.pdf", b"%PDF-1.4 broken", "cannot be read as pdf"),
        ("a.docx", b"not a zip", "cannot be read as docx"),
        ("a.html", b"<html><body> </body></html>", "no text in it"),
        ("a.pdf", pdf(""), "text recognition"),
    ],
)
def test_what_cannot_be_read_is_skipped_with_advice(tmp_path: Path, name: str, data: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(data)
    assert words in reason(tmp_path / name)


def test_a_file_above_the_limit_is_skipped_unread(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    with path.open("wb") as file:
        file.write(b"x" * 10_000)
        file.truncate(100 << 20)  # a sparse file: the rest would be NUL if it were read
    assert "100.0 MiB, above the limit of 64.0 MiB; split it" in reason(path)


def test_a_file_without_permission_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, a_md="a")

    def refused(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)  # the tests may run as root, whom no permission stops
    assert "no permission" in reason(tmp_path / "a.md")


def test_a_file_that_is_gone_is_skipped(tmp_path: Path) -> None:
    (skipped,) = read_documents(Source(str(tmp_path / "gone.md"), "gone.md"))
    assert isinstance(skipped, Skipped)
    assert "see whether it is still there" in skipped.reason


def test_a_pipe_is_skipped(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not an ordinary file" in reason(tmp_path / "pipe")


def test_one_bad_file_does_not_end_the_rest(tmp_path: Path) -> None:
    put(tmp_path / "docs", a_pdf=b"%PDF broken", b_md="fine", c_docx=b"PK\3\4broken", d_txt="fine too")
    kinds = [type(result) for result in read(tmp_path / "docs")]
    assert kinds == [Skipped, Document, Skipped, Document]


def test_html_becomes_markdown_with_its_title(tmp_path: Path) -> None:
    html = "<html><head><title>Käse</title><style>p{}</style></head><body><h1>Head</h1><p>Some <b>words</b>.</p></body>"
    (tmp_path / "a.html").write_bytes(html.encode("utf-16"))
    document = one(tmp_path / "a.html")
    assert (document.title, document.text, document.media_type) == (
        "Käse", "# Head\n\nSome **words**.", "text/html",
    )  # fmt: skip


def test_deeply_nested_html_is_read_without_a_word_on_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.html").write_text("<div>" * 3000 + "deep words" + "</div>" * 3000)
    assert "deep words" in one(tmp_path / "a.html").text
    assert capfd.readouterr() == ("", "")


def test_a_pdf_is_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.pdf").write_bytes(pdf("The budget was agreed."))
    document = one(tmp_path / "report.pdf")
    assert (document.title, document.text.strip()) == ("report", "The budget was agreed.")
    assert capfd.readouterr() == ("", "")


def test_a_word_file_is_read(tmp_path: Path) -> None:
    docx(tmp_path / "a.docx")
    document = one(tmp_path / "a.docx")
    assert (document.title, document.text) == ("Minutes", "# Minutes\n\nThe budget was agreed.")


def test_an_office_file_that_would_unpack_to_too_much_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "bomb.docx"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("word/document.xml", " " * 100_000)
    assert "unpacks to" in reason(path, ReadConfig(max_bytes=4096))


def test_without_the_converters_a_pdf_is_skipped_with_the_command_to_install_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.pdf").write_bytes(pdf("x"))
    monkeypatch.setitem(__import__("sys").modules, "markitdown", None)
    assert "pip install 'headrace[files]'" in reason(tmp_path / "a.pdf")


CORPUS = "\n".join(
    [
        '{"_id": "d1", "title": "One", "text": "First.", "url": "http://x", "metadata": {"year": 2024}}',
        '{"_id": 2, "text": "Second."}',
        "",
        "not json",
        '{"title": "x", "text": "no id"}',
        '{"_id": "d4", "title": "t", "text": " "}',
        '{"_id": "d5", "text": ["x"]}',
        '{"_id": "d6", "text": "\\ud800"}',
        "[1]",
        '{"_id": "d7", "title": null, "text": "北京"}',
    ]
)


def test_a_beir_corpus_gives_a_document_a_line_and_names_the_bad_ones(tmp_path: Path) -> None:
    put(tmp_path / "set", corpus_jsonl=CORPUS, queries_jsonl="{}", qrels__test_tsv="x")
    results = read(tmp_path / "set")
    documents = [result for result in results if isinstance(result, Document)]
    assert [(d.id, d.title, d.text) for d in documents] == [
        ("d1", "One", "First."), ("2", "", "Second."), ("d7", "", "北京"),
    ]  # fmt: skip
    assert documents[0].metadata == {"year": 2024, "url": "http://x"}
    skipped = [result for result in results if isinstance(result, Skipped)]
    assert [s.path for s in skipped] == [f"set/corpus.jsonl:{line}" for line in (4, 5, 6, 7, 8, 9)]
    assert [s.reason.split(";")[0].split(" (")[0] for s in skipped] == [
        "not a JSON object", 'no "_id"', "no text", '"title" and "text" must be strings', "not a JSON object",
        "not a JSON object",
    ]  # fmt: skip


def test_a_corpus_file_may_be_named_itself(tmp_path: Path) -> None:
    put(tmp_path, corpus_jsonl=CORPUS)
    (source,) = find_sources([tmp_path / "corpus.jsonl"])
    assert source == Source(str(tmp_path / "corpus.jsonl"), "corpus.jsonl", "beir")


def test_a_line_of_a_corpus_above_the_limit_is_skipped_and_the_next_is_read(tmp_path: Path) -> None:
    long = '{"_id": "long", "text": "' + "x" * 5000 + '"}\n'
    put(tmp_path, corpus_jsonl=long + '{"_id": "d", "text": "fine"}\n' + long.strip())
    results = read(tmp_path / "corpus.jsonl", ReadConfig(max_bytes=2048))
    assert [r.path if isinstance(r, Skipped) else r.id for r in results] == ["corpus.jsonl:1", "d", "corpus.jsonl:3"]


def test_a_limit_that_fits_nothing_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"read\.max_bytes is 10"):
        ReadConfig(max_bytes=10)


def test_a_workbook_and_slides_are_read_with_their_tables_and_titles(tmp_path: Path) -> None:
    import openpyxl
    import pptx

    workbook = openpyxl.Workbook()
    for row in (["part", "made in"], ["turbine", 1924]):
        workbook.active.append(row)
    workbook.save(tmp_path / "mill.xlsx")
    slides = pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[1])
    slide.shapes.title.text = "The Mill"
    slide.placeholders[1].text = "The weir is made of granite."
    slides.save(tmp_path / "mill.pptx")
    assert "| turbine | 1924 |" in one(tmp_path / "mill.xlsx").text
    presentation = one(tmp_path / "mill.pptx")
    assert (presentation.title, "made of granite" in presentation.text) == ("The Mill", True)
