"""What `--data` can name, and what is said when it cannot be read."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractus_core.api import FractusError
from fractus_core.data import cache as cache_module
from fractus_text import readers
from fractus_text.corpus import Corpus, documents


def texts(corpus: Corpus) -> list[str]:
    """Whole documents."""
    whole, parts = [], []
    for piece in corpus:
        parts.append(piece.text)
        if piece.ends:
            whole.append("".join(parts))
            parts = []
    assert not parts
    return whole


def refused(data: object, **options: Any) -> str:
    with pytest.raises(FractusError) as caught:
        texts(documents(str(data), **options))
    message = str(caught.value)
    assert "\n" not in message
    return message


def write_jsonl(file: Path, *rows: object) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_parquet(file: Path, **columns: list[Any]) -> Path:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(columns), file)
    return file


def test_python_docs_is_english_and_source() -> None:
    corpus = documents("python-docs")
    found = texts(corpus)
    assert 6e6 < sum(map(len, found)) < 16e6
    assert any(text.startswith('"""Random variable generators.') for text in found)
    assert any('The "while" statement' in text for text in found)
    assert corpus.fingerprint == documents("python-docs").fingerprint
    assert corpus.replaced == 0


def test_python_docs_has_nothing_that_was_installed() -> None:
    files = [file for item in documents("python-docs")._inputs for file in item.files]
    parts = {part for file in files for part in file.parts}
    assert not parts & {"site-packages", "dist-packages", "test", "idlelib", "encodings"}
    names = {file.name for file in files}
    assert "random.py" in names
    assert not any(name.startswith("_sysconfigdata") for name in names)


def test_file_folder_and_glob(tmp_path: Path) -> None:
    for name, text in {"b.txt": "two", "a.md": "one", "d/c.py": "three", "no.bin": "-"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.txt").write_text("hidden")
    assert texts(documents(str(tmp_path / "b.txt"))) == ["two"]
    assert texts(documents(str(tmp_path))) == ["one", "two", "three"]
    assert texts(documents(str(tmp_path / "*.*"))) == ["one", "two"]
    assert texts(documents(str(tmp_path / "**" / "*.py"))) == ["three"]


def test_rows_are_documents(tmp_path: Path) -> None:
    rows = ["first", "", "zweiter Ä\n", None, "third"]
    expected = ["first", "zweiter Ä\n", "third"]
    jsonl = write_jsonl(tmp_path / "a.jsonl", *({"body": row, "n": 1} for row in rows))
    parquet = write_parquet(tmp_path / "a.parquet", body=rows, n=[1] * 5)
    assert texts(documents(str(jsonl), column="body")) == expected
    assert texts(documents(str(parquet), column="body")) == expected


def test_local_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "set"
    folder.mkdir()
    write_jsonl(folder / "train.jsonl", {"text": "one"}, {"text": "two"})
    write_jsonl(folder / "test.jsonl", {"text": "three"})
    assert texts(documents(f"hf:{folder}")) == ["one", "two"]
    assert texts(documents(f"hf:{folder}:test")) == ["three"]
    assert "no column 'body'; it has text" in refused(f"hf:{folder}", column="body")
    assert "cannot load hf:" in refused(f"hf:{folder}:nosuch")


def test_no_network_for_the_hub(no_network: None) -> None:
    pytest.importorskip("datasets")
    assert "check the name and the network" in refused("hf:someone/something")


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\ufeff")))
def test_long_files_come_in_pieces(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.getbasetemp() / "pieces.txt"
    file.write_bytes(("x" + text).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "PIECE", 8)
        pieces = list(documents(str(file)))
    assert "".join(piece.text for piece in pieces) == "x" + text
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert all(len(piece.text.encode()) <= 8 for piece in pieces)


def test_pieces_end_with_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "PIECE", 10)
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\nfour")
    pieces = [piece.text for piece in documents(str(tmp_path / "a.txt"))]
    assert pieces == ["one\ntwo\n", "three\n", "four"]
    (tmp_path / "a.txt").write_text("one\ntwo\nx\n")  # as long as a piece
    assert texts(documents(str(tmp_path / "a.txt"))) == ["one\ntwo\nx\n"]


def test_progress_ends_at_the_size(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", *({"text": "x" * n} for n in range(1, 50)))
    write_parquet(tmp_path / "b.parquet", text=["y"] * 600)
    (tmp_path / "c.txt").write_text("z" * 1000)
    seen: list[tuple[int, int]] = []
    corpus = documents(str(tmp_path))
    list(corpus.texts(lambda done, total: seen.append((done, total))))
    assert seen == sorted(seen)
    assert seen[-1] == (corpus.size, corpus.size)


def test_invalid_utf8_is_replaced_and_counted_once_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "PIECE", 16)
    (tmp_path / "bad.txt").write_bytes(b"good line\n" * 3 + b"b\xff\n" + b"more\n" * 9 + b"\xfe")
    (tmp_path / "good.txt").write_text("fine")
    corpus = documents(str(tmp_path))
    assert "b\ufffd\n" in texts(corpus)[0]
    assert corpus.replaced == 1
    message = refused(tmp_path, on_invalid="refuse")
    assert "bad.txt: invalid UTF-8 at byte 31" in message


def test_invalid_utf8_in_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "ok"}\n{"text": "\xff"}\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "\\ud83d"}\n')
    column = pyarrow.array([b"ok", b"\xff"]).view(pyarrow.string())
    write_parquet(tmp_path / "c.parquet", text=column)
    for name, place in {
        "a.jsonl": "at byte 25",
        "b.jsonl": "line 1",
        "c.parquet": "row 1",
    }.items():
        corpus = documents(str(tmp_path / name))
        assert "\ufffd" in texts(corpus)[-1]
        assert corpus.replaced == 1
        message = refused(tmp_path / name, on_invalid="refuse")
        assert name in message and place in message


def test_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text", encoding="utf-8-sig")
    (tmp_path / "b.jsonl").write_text('{"text": "row"}\n', encoding="utf-8-sig")
    assert texts(documents(str(tmp_path))) == ["text", "row"]


def test_missing_data(tmp_path: Path) -> None:
    assert str(tmp_path / "none") in refused(tmp_path / "none")
    assert "no data named" in refused("")
    for data in (tmp_path, tmp_path / "*.txt"):
        message = refused(data)
        assert str(data) in message and ".txt, .md, .py, .jsonl, .parquet" in message


def test_file_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("x")
    assert "cannot read .docx" in refused(tmp_path / "a.docx")


def test_empty_data(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    assert "a.txt is empty" in refused(tmp_path / "a.txt")
    write_jsonl(tmp_path / "b.jsonl", {"text": ""}, {"text": None})
    assert "has no text in it" in refused(tmp_path / "b.jsonl")


def test_binary_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"a" * 5000 + b"\0")
    assert "a.txt is binary, not text: NUL at byte 5000" in refused(tmp_path / "a.txt")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "x"}\n\0\0')
    assert "b.jsonl is binary, not text: NUL at byte 14" in refused(tmp_path / "b.jsonl")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "cut', "damaged JSON line"),
        ("[" * 100_000, "damaged JSON line"),
        ('["text"]', "expected a JSON object, found list"),
        ('{"body": "x", "id": 1}', "has no column 'text'; it has body, id"),
        ('{"text": 5}', "column 'text' holds int, not text"),
    ],
    ids=["cut", "deep", "list", "column", "number"],
)
def test_damaged_jsonl_names_the_line(tmp_path: Path, line: str, says: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{{"text": "fine"}}\n\n{line}\n')
    message = refused(tmp_path / "a.jsonl")
    assert "a.jsonl, line 3" in message and says in message


def test_damaged_parquet(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "a.parquet", text=["some text"] * 9, number=[1] * 9)
    assert "has no column 'body'; it has number, text" in refused(file, column="body")
    assert "column 'number' holds int64, not text" in refused(file, column="number")
    content = file.read_bytes()
    file.write_bytes(content[:-20])
    assert f"damaged Parquet file {file}" in refused(file)
    file.write_bytes(content[:4] + bytes(50) + content[54:])
    assert f"damaged Parquet file {file}" in refused(file)


def test_pyarrow_is_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'fractus[datasets]'" in refused(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'fractus[datasets]'" in refused("hf:anything")


def test_file_that_vanishes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    corpus = documents(str(tmp_path))
    (tmp_path / "a.txt").unlink()
    with pytest.raises(FractusError, match=r"cannot read .*a\.txt: No such file"):
        list(corpus)


def test_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("one")
    first = documents(str(tmp_path / "a.txt")).fingerprint
    assert documents(str(tmp_path / "b.txt")).fingerprint == first
    (tmp_path / "a.txt").write_text("two")
    assert documents(str(tmp_path / "a.txt")).fingerprint != first
    rows = write_jsonl(tmp_path / "c.jsonl", {"x": "1", "y": "2"})
    by_x, by_y = (documents(str(rows), column=column).fingerprint for column in "xy")
    assert by_x != by_y


def test_known_files_are_not_hashed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.txt"
    hashed: list[Path] = []
    content_hash = cache_module.content_hash

    def count(file: Path) -> str:
        hashed.append(file)
        return content_hash(file)

    monkeypatch.setattr(cache_module, "content_hash", count)

    def fingerprint(text: str, age: int) -> str:
        file.write_text(text)
        then = 1_700_000_000 + age
        os.utime(file, (then, then))
        return documents(str(file)).fingerprint

    first = fingerprint("one", age=0)
    assert fingerprint("one", age=0) == first
    assert len(hashed) == 1
    assert fingerprint("two", age=1) != first
    assert len(hashed) == 2
    (tmp_path / "cache" / "hashes.json").write_text("{damaged")
    assert fingerprint("one", age=0) == first
    assert len(hashed) == 3


def test_fresh_files_are_hashed_again(tmp_path: Path) -> None:
    # A file can change twice within one tick of the file system's clock.
    file = tmp_path / "a.txt"
    file.write_text("one")
    stat = file.stat()
    first = documents(str(file)).fingerprint
    file.write_text("two")
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert documents(str(file)).fingerprint != first
