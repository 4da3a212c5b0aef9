"""The shards of some data have nothing in common, and are all of it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from running import left, one_line, resume, start, write_corpus

from fractus_core.api import WHOLE, Batch, FractusError, Option, Shard, Split
from fractus_core.cli.main import main
from fractus_text.frontend import TextFrontend
from fractus_text.source import TokenSource, part
from fractus_vision.frontend import VisionFrontend
from fractus_vision.glyphs import Glyphs
from fractus_vision.plugin import fractus_frontends

# ------------------------------------------------------------------------------------------- text


def text_source(
    data: Path,
    split: Split,
    shard: Shard = WHOLE,
    *,
    rows: int = 1,
    chunk: int = 1,
    seed: int = 0,
) -> TokenSource:
    options = {"tokenizer": "bytes", "column": "text", "validation": 0.3, "on_invalid": "replace"}
    frontend = TextFrontend(8, options, TextFrontend.infer_schema(str(data), options))
    source = frontend.open(
        str(data), split, batch_size=rows, chunk_len=chunk, seed=seed, shard=shard
    )
    assert isinstance(source, TokenSource)
    return source


def read(source: TokenSource) -> list[int]:
    """All tokens of an epoch: of one row in chunks of 1, nothing is left over."""
    batches = list(islice(source, source.chunks))
    return [int(batch.observations) for batch in batches] + [int(batches[-1].targets)]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_text_is_cut_in_order(tmp_path: Path, count: int) -> None:
    """One document: what the shards read, one after the other, is what one run reads."""
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents=1, length=600)
    whole = read(text_source(corpus, "train"))
    parts = [read(text_source(corpus, "train", Shard(i, count))) for i in range(count)]
    assert [token for part in parts for token in part] == whole
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("count", [2, 5])
def test_documents_come_whole_but_for_the_cuts(tmp_path: Path, count: int) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl", documents=12, length=60)
    eot = 256
    documents = sorted(split_at(read(text_source(corpus, "train")), eot))
    found, cut = [], []
    for i in range(count):
        for piece in split_at(read(text_source(corpus, "train", Shard(i, count))), eot):
            (found if piece in documents else cut).append(piece)
    assert len(cut) <= 2 * (count - 1)
    missing = sum(map(len, documents)) - sum(map(len, found))
    assert sum(map(len, cut)) == missing
    assert all(documents.count(piece) >= found.count(piece) for piece in found)


def split_at(tokens: list[int], end: int) -> list[list[int]]:
    pieces: list[list[int]] = [[]]
    for token in tokens:
        pieces[-1].append(token)
        if token == end:
            pieces.append([])
    return [piece for piece in pieces if piece]


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(1, 12))
def test_every_token_is_in_one_shard(lengths: list[int], count: int) -> None:
    """Documents of these lengths, with gaps between: of other splits."""
    sizes = np.array(lengths)
    starts = np.cumsum(2 * sizes) - 2 * sizes
    expected = [t for s, n in zip(starts, sizes, strict=True) for t in range(s, s + n)]
    found = []
    for i in range(count):
        where, how_many = part(starts, sizes, Shard(i, count))
        assert (how_many > 0).all()
        found += [t for s, n in zip(where, how_many, strict=True) for t in range(s, s + n)]
    assert found == expected


def test_text_is_held_out_alike(tmp_path: Path) -> None:
    """And not by its seed; what is trained on is told apart by its fingerprint."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    shards = [Shard(), Shard(0, 3), Shard(1, 3), Shard(2, 3)]
    for split in ("validation", "all"):
        sources = [
            text_source(corpus, split, shard, seed=i)  # type: ignore[arg-type]
            for i, shard in enumerate(shards)
        ]
        assert len({source.fingerprint for source in sources}) == 1
        assert len({tuple(read(source)) for source in sources}) == 1
    assert len({text_source(corpus, "train", shard).fingerprint for shard in shards}) == 4


# ----------------------------------------------------------------------------------------- vision


SIZE = 16


@pytest.fixture
def images(tmp_path: Path) -> Path:
    classes = {"cat": range(10), "dog": range(100, 115), "eel": range(200, 206)}
    for i, (name, numbers) in enumerate(classes.items()):
        for split, numbered in (("train", numbers), ("test", [300 + i])):
            folder = tmp_path / "images" / split / name
            folder.mkdir(parents=True)
            for number in numbered:
                colour = (*divmod(number, 256), 7)
                Image.new("RGB", (SIZE, SIZE), colour).save(folder / f"{number}.png")
    return tmp_path / "images"


def vision_source(data: Path | str, split: Split, shard: Shard, *, rows: int) -> Any:
    [spec] = fractus_frontends()
    options = {option.name: option.default for option in spec.options if isinstance(option, Option)}
    options |= {"mirror": False, "shift": 0, "size": SIZE, "batch_size": rows}
    frontend = VisionFrontend(8, options, VisionFrontend.infer_schema(str(data), options))
    return frontend.open(str(data), split, batch_size=1, chunk_len=1, seed=0, shard=shard)


def numbers(batch: Batch) -> list[int]:
    """Of the images, from their colours."""
    return [256 * int(image[0, 0, 0]) + int(image[1, 0, 0]) for image in batch.observations]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_every_image_is_in_one_shard(images: Path, count: int) -> None:
    found: list[int] = []
    for i in range(count):
        own = len(range(i, 31, count))
        source = vision_source(images, "train", Shard(i, count), rows=own)
        first, second = numbers(next(source)), numbers(next(source))
        assert len(set(first)) == own
        assert sorted(first) == sorted(second)  # the next epoch, of the same
        assert {number // 100 for number in first} == {0, 1, 2}
        found += first
    assert sorted(found) == [*range(10), *range(100, 115), *range(200, 206)]


def test_images_are_held_out_alike(images: Path) -> None:
    sources = [vision_source(images, "validation", Shard(i, 3), rows=3) for i in range(3)]
    assert len({source.fingerprint for source in sources}) == 1
    assert [sorted(numbers(next(source))) for source in sources] == 3 * [[300, 301, 302]]
    trained = {vision_source(images, "train", Shard(i, 3), rows=3).fingerprint for i in range(3)}
    assert len(trained) == 3


def test_more_shards_than_images(images: Path) -> None:
    with pytest.raises(FractusError, match=f"{images} has no image in shard 40/50: use fewer"):
        vision_source(images, "train", Shard(40, 50), rows=1)


def test_glyphs() -> None:
    """Of an endless sequence every so many-th, from another place on."""
    whole = Glyphs("train", size=16, channels=3, seed=2)
    expected, labels = whole.take(np.arange(60))
    shards = [Glyphs("train", size=16, channels=3, seed=2, shard=Shard(i, 3)) for i in range(3)]
    for i, shard in enumerate(shards):
        found, own = shard.take(np.arange(20))
        assert np.array_equal(found, expected[i::3])
        assert np.array_equal(own, labels[i::3])
    assert len({picture.tobytes() for picture in expected}) == 60
    assert len({shard.fingerprint for shard in [whole, *shards]}) == 4
    held_out = [
        Glyphs("validation", size=16, channels=3, seed=2, shard=shard)
        for shard in (Shard(), Shard(1, 3))
    ]
    assert held_out[0].fingerprint == held_out[1].fingerprint
    assert np.array_equal(held_out[0].take(np.arange(9))[0], held_out[1].take(np.arange(9))[0])


# --------------------------------------------------------------------------------- the command line


def test_a_resumed_run_keeps_its_shard(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "2", "--shard", "1/2")) == 0
    assert json.loads((out / "run.json").read_text())["shard"] == "1/2"
    other = tmp_path / "other"
    assert main(start(corpus, other, "--steps", "2", "--shard", "0/2")) == 0
    assert not torch.equal(
        left(out).tensors["frontend-text/weight"], left(other).tensors["frontend-text/weight"]
    )
    assert main(resume(out, "--steps", "4")) == 0
    assert json.loads((out / "run.json").read_text())["shard"] == "1/2"


@pytest.mark.parametrize("value", ["4/4", "a/b", "1", "1/0", "-1/2", "0/2/3", " 0/2", "1.0/2", ""])
def test_bad_values(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    assert main(start(corpus, tmp_path / "run", f"--shard={value}")) == 2
    line = one_line(capsys.readouterr().err)
    assert "--shard" in line
    assert value in line
    assert not (tmp_path / "run").exists()


def test_too_many(tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(start(corpus, tmp_path / "run", "--shard", "3/1000")) == 1
    line = one_line(capsys.readouterr().err)
    assert "shard 3/1000 of the train split has " in line
    assert "a batch of 4 x 16 needs 65" in line
    assert not (tmp_path / "run").exists()
