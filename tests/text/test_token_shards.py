"""Token shards hold exactly the corpus, are built once, and know when they are damaged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import tiktoken

from fractus_core.api import FractusError, Split
from fractus_text import readers, shards
from fractus_text.corpus import documents
from fractus_text.encoding import encode_text
from fractus_text.shards import TokenShards, encode
from fractus_text.tokenizers import load

BYTES = load("bytes")


def write_rows(file: Path, texts: list[str]) -> Path:
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return file


def encoded(data: Path, encoding: tiktoken.Encoding = BYTES, **options: Any) -> TokenShards:
    return encode(documents(str(data)), encoding, **options)


def all_tokens(found: TokenShards) -> list[int]:
    return list(found.take(np.arange(found.tokens)))


def split_texts(found: TokenShards, split: Split) -> list[bytes]:
    """The documents of a split; those that are whole end with the end-of-text token."""
    return [
        BYTES.decode_bytes(found.take(np.arange(start, start + length)).tolist())
        for start, length in zip(*found.documents(split), strict=True)
    ]


@pytest.mark.parametrize("shard", [7, 64, 1 << 24])
def test_tokens_are_those_of_the_documents(
    shard: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "SHARD", shard)
    texts = [f"document {number}\n" * (number % 5 + 1) for number in range(40)]
    encoding = load("fractus-8k")
    expected: list[int] = []
    starts = []
    for text in texts:
        starts.append(len(expected))
        expected += [*encode_text(encoding, text).tolist(), encoding.eot_token]
    found = encoded(write_rows(tmp_path / "a.jsonl", texts), encoding)
    assert all_tokens(found) == expected
    assert found.starts.tolist() == starts
    assert found.sizes.tolist() == [len(text) for text in texts]
    assert len(found.shards) == -(-len(expected) // shard)
    assert all(part.dtype == np.uint16 for part in found.shards)


def test_a_file_in_pieces_is_one_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "".join(f"line {number}\n" for number in range(200))
    (tmp_path / "a.txt").write_text(text)
    monkeypatch.setattr(readers, "PIECE", 32)
    found = encoded(tmp_path / "a.txt")
    assert all_tokens(found) == [*text.encode(), 256]
    assert found.starts.tolist() == [0]


def test_large_vocabularies_are_32_bits_wide(tmp_path: Path) -> None:
    text = "".join(map(chr, range(0x10000, 0x20200)))
    (tmp_path / "a.txt").write_text(text)
    found = encoded(tmp_path / "a.txt", load("chars", [text]))
    assert found.shards[0].dtype == np.uint32
    assert all_tokens(found) == [*range(len(text)), len(text)]


def test_built_once_for_each_data_and_tokenizer(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "a.jsonl", ["some text", "more text", "and more"])
    calls: list[tuple[int, int]] = []

    def report(done: int, total: int) -> None:
        calls.append((done, total))

    first = encoded(data, progress=report)
    assert calls[-1] == (data.stat().st_size, data.stat().st_size)
    calls.clear()
    assert encoded(data, progress=report, validation=0.3).fingerprint == first.fingerprint
    assert not calls
    other_tokenizer = encoded(data, load("chars", ["some text more text and more"]))
    other_data = encoded(write_rows(tmp_path / "a.jsonl", ["another", "text"]))
    assert len({first.fingerprint, other_tokenizer.fingerprint, other_data.fingerprint}) == 3


@pytest.mark.parametrize("name", ["manifest.json", "tokens-00000.npy", "starts.npy", "hashes.npy"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda file: file.unlink(),
        lambda file: file.write_bytes(file.read_bytes()[:-1]),
        lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]),
        lambda file: file.write_bytes(file.read_bytes()[:-3] + b"\x55\x55\x55"),
    ],
    ids=["missing", "cut", "first byte", "last bytes"],
)
def test_damage_is_named(name: str, damage: Callable[[Path], None], tmp_path: Path) -> None:
    data = write_rows(tmp_path / "a.jsonl", ["some text", "more text", "and more"])
    found = encoded(data)
    damage(found.directory / name)
    with pytest.raises(FractusError, match=r"delete .* and start again") as caught:
        encoded(data)
    assert str(found.directory / name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_manifest_of_other_data(tmp_path: Path) -> None:
    one = encoded(write_rows(tmp_path / "a.jsonl", ["some text", "more text"]))
    data = write_rows(tmp_path / "b.jsonl", ["other text", "more text"])
    two = encoded(data)
    (two.directory / "manifest.json").write_bytes((one.directory / "manifest.json").read_bytes())
    with pytest.raises(FractusError, match="does not belong to this directory"):
        encoded(data)


def run(script: str, *arguments: object) -> subprocess.Popen[str]:
    code = "from fractus_text.corpus import documents\nfrom fractus_text.shards import encode\n"
    code += "from fractus_text.tokenizers import load\nimport os, sys, time\n"
    code += textwrap.dedent(script)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)


def test_killed_while_encoding(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "a.jsonl", ["some text"] * 9 + ["more text"])
    process = run(
        """
        die = lambda done, total: os._exit(9)
        encode(documents(sys.argv[1]), load("bytes"), progress=die)
        """,
        data,
    )
    assert process.wait(60) == 9
    assert len(encoded(data).starts) == 10


def test_two_processes_build_once(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "a.jsonl", [f"text {number}" for number in range(18)])
    script = """
        def slowly(done, total):
            print("encoding", flush=True)
            time.sleep(0.05)
        print(encode(documents(sys.argv[1]), load("bytes"), progress=slowly).fingerprint)
        """
    processes = [run(script, data) for _ in range(2)]
    outputs = [process.communicate(timeout=60)[0].split() for process in processes]
    assert len({output[-1] for output in outputs}) == 1
    assert sorted(len(output) for output in outputs) == [1, 19]


def test_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    data = write_rows(tmp_path / "a.jsonl", ["some text", "more text"])
    with pytest.raises(FractusError, match="set FRACTUS_CACHE"):
        encoded(data, cache=tmp_path / "file")


def test_unknown_character_leaves_nothing_behind(tmp_path: Path, cache: Path) -> None:
    data = write_rows(tmp_path / "a.jsonl", ["abc", "abd"])
    with pytest.raises(FractusError, match="no token for 'd'"):
        encoded(data, load("chars", ["abc"]))
    assert [file.suffix for file in (cache / "tokens").iterdir()] == [".lock"]


def test_invalid_files_are_remembered(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"some text \xff and more")
    assert encoded(tmp_path / "a.txt").replaced == 1
    assert encoded(tmp_path / "a.txt").replaced == 1
    with pytest.raises(FractusError, match="invalid UTF-8 at byte 10"):
        encode(documents(str(tmp_path / "a.txt"), on_invalid="refuse"), BYTES)


def test_data_that_changes_while_it_is_read(tmp_path: Path) -> None:
    data = write_rows(tmp_path / "a.jsonl", ["some text", "more text"])
    with pytest.raises(FractusError, match="changed while it was read"):
        encoded(data, progress=lambda *_: data.write_text('{"text": "other"}\n'))


def test_splits_are_a_partition_of_the_documents(tmp_path: Path) -> None:
    texts = [f"document {number} " + "x" * (number % 50) for number in range(500)]
    found = encoded(write_rows(tmp_path / "a.jsonl", texts), validation=0.2)
    train, validation = split_texts(found, "train"), split_texts(found, "validation")
    wholes = [text.encode() + b"<|endoftext|>" for text in texts]
    assert sorted(train + validation) == sorted(wholes)
    assert not set(train) & set(validation)
    share = sum(map(len, validation)) / sum(map(len, wholes))
    assert 0.17 < share <= 0.21
    # By the text alone: not by its place, the tokenizer, or what else is drawn.
    reordered = encoded(write_rows(tmp_path / "b.jsonl", texts[::-1]), validation=0.2)
    assert sorted(split_texts(reordered, "validation")) == sorted(validation)
    less = encoded(tmp_path / "a.jsonl", validation=0.05)
    assert set(split_texts(less, "validation")) < set(validation)


def test_copies_of_a_document_stay_together(tmp_path: Path) -> None:
    texts = [f"document {number // 5}" for number in range(100)]
    found = encoded(write_rows(tmp_path / "a.jsonl", texts), validation=0.3)
    train, validation = split_texts(found, "train"), split_texts(found, "validation")
    assert not set(train) & set(validation)
    assert len(train) + len(validation) == 100
    assert len(validation) % 5 == 0
    assert validation


def test_one_document_is_cut_near_its_end(tmp_path: Path) -> None:
    text = "".join(chr(97 + number * number % 26) for number in range(1003))
    (tmp_path / "a.txt").write_text(text)
    found = encoded(tmp_path / "a.txt")
    (train,), (validation,) = split_texts(found, "train"), split_texts(found, "validation")
    assert train == text[:902].encode()  # int(1003 * 0.9)
    assert validation == text[902:].encode() + b"<|endoftext|>"


def test_long_documents_lose_the_end_of_one(tmp_path: Path) -> None:
    texts = ["a" * 300, "b" * 400, "c" * 300]
    found = encoded(write_rows(tmp_path / "a.jsonl", texts))
    assert split_texts(found, "validation") == [b"b" * 100 + b"<|endoftext|>"]
    assert split_texts(found, "train")[1] == b"b" * 300


def test_nothing_to_hold_back(tmp_path: Path) -> None:
    for texts in (["a"], ["same text"] * 5):
        found = encoded(write_rows(tmp_path / "a.jsonl", texts))
        for split in ("train", "validation"):
            with pytest.raises(FractusError, match="cannot hold back 10% of"):
                found.documents(split)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is mapped")
def test_what_was_read_does_not_stay_resident(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("all work and no play " * 1_000_000)
    found = encoded(tmp_path / "long.txt", cache=tmp_path / "cache")
    found.take(np.arange(5))  # what is needed once
    process = psutil.Process()
    before = process.memory_info().shared
    read = 0
    for start in range(0, found.tokens - 1024, 1024):
        read += found.take(np.arange(start, start + 1024)).size
    assert 2 * read > 40e6  # bytes
    assert process.memory_info().shared - before < 4e6
