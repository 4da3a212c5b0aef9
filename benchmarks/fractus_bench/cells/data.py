"""How fast data is made ready and read, and what a large corpus costs before the first batch."""

from __future__ import annotations

import gc
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from PIL import Image

from fractus_bench.records import Measured, Row
from fractus_bench.shards import open_shards
from fractus_bench.timing import compare, spread
from fractus_bench.training import defaults
from fractus_core.api import Source
from fractus_text.corpus import documents
from fractus_text.shards import encode
from fractus_text.source import TokenSource
from fractus_text.tokenizers import load
from fractus_vision.frontend import VisionFrontend
from fractus_vision.glyphs import CLASSES, Glyphs
from fractus_vision.plugin import fractus_frontends

SETTLED = 2.5
"""Seconds after which the cache trusts a file's modification time and need not read it again."""
BATCHES = 200
"""Read after the start, before memory is looked at."""


def text(*, repeats: int, tokenizer: str, megabytes: int) -> Measured:
    """Encoding a text file (the Python documentation) into shards, and reading batches of it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "corpus.txt"
        _write_python_docs(file, megabytes * 10**6)
        encoding = load(tokenizer)
        corpus = documents(str(file), cache=Path(folder))
        shards = encode(corpus, encoding, cache=Path(folder) / "first")
        source = TokenSource(shards, "train", batch_size=8, chunk_len=32, seed=0)
        made = iter(range(10**9))

        def encode_anew() -> int:
            return encode(corpus, encoding, cache=Path(folder) / f"cache-{next(made)}").tokens

        rows = compare(
            {
                "encode": encode_anew,
                "read batches of 8 x 32": lambda: next(source).observations.numel(),
            },
            repeats,
        )
    for row in rows:
        del row["speedup"]
    return Measured(rows, {"tokenizer": tokenizer, "bytes_of_text": corpus.size})


def images(*, repeats: int, count: int) -> Measured:
    """Glyphs drawn as they are read, and a folder of PNG files, decoded once and then mapped."""
    options: dict[str, Any] = defaults(fractus_frontends()[0].options)
    sizes = {"batch_size": options["batch_size"], "chunk_len": 32, "seed": 0}
    frontend = VisionFrontend(64, options, {"classes": list(CLASSES)})
    with tempfile.TemporaryDirectory() as folder:
        _write_glyphs(Path(folder), count)
        begun = time.perf_counter()
        mapped: Source = frontend.open(folder, "train", **sizes)
        decoding = time.perf_counter() - begun
        drawn: Source = frontend.open("glyphs", "train", **sizes)
        rows = compare(
            {
                "glyphs, drawn": lambda: len(next(drawn).targets),
                "folder, mapped and augmented": lambda: len(next(mapped).targets),
            },
            repeats,
            per="image",
        )
    for row in rows:
        del row["speedup"]
    return Measured(rows, {"images_decoded_per_second": count / decoding})


def start(*, repeats: int, small: int, large: int, vocabulary: int) -> Measured:
    """Opening a small and a large corpus that is in the cache, up to the first batch."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        for tokens in (small, large):  # made, and once they have settled, hashed
            open_shards(cache, tokens, vocabulary)
        time.sleep(SETTLED)
        for tokens in (small, large):
            open_shards(cache, tokens, vocabulary)
        for tokens in (small, large):
            seconds, heap, mapped = [], [], []
            for _ in range(repeats):
                gc.collect()
                heap_before, mapped_before = _memory()
                begun = time.perf_counter()
                shards = open_shards(cache, tokens, vocabulary)
                source = TokenSource(shards, "train", batch_size=8, chunk_len=32, seed=0)
                next(source)
                seconds.append(1e3 * (time.perf_counter() - begun))
                for _ in range(BATCHES):
                    next(source)
                heap_after, mapped_after = _memory()
                heap.append(heap_after - heap_before)
                mapped.append(mapped_after - mapped_before)
                del source, shards
            rows.append(
                {
                    "variant": f"{tokens:,} tokens",
                    "corpus_mb": 2 * tokens / 1e6,
                    "start_ms": spread(seconds),
                    "heap_mb": max(heap),
                    "mapped_mb": max(mapped),
                }
            )
    return Measured(rows)


def _memory() -> tuple[float, float]:
    """Megabytes of this process in memory: its own, and files mapped into it."""
    info = psutil.Process().memory_info()
    mapped = getattr(info, "shared", 0)  # Linux tells; elsewhere all counts as its own
    return (info.rss - mapped) / 1e6, mapped / 1e6


def _write_python_docs(file: Path, size: int) -> None:
    with file.open("w", encoding="utf-8") as opened:
        for piece in documents("python-docs"):
            opened.write(piece.text)
            if opened.tell() >= size:
                break


def _write_glyphs(folder: Path, count: int) -> None:
    import numpy as np

    glyphs = Glyphs("train", size=32, channels=3, seed=0)
    pixels, labels = glyphs.take(np.arange(count))
    for number, (picture, label) in enumerate(zip(pixels, labels.tolist(), strict=True)):
        place = folder / CLASSES[label]
        place.mkdir(exist_ok=True)
        Image.fromarray(picture).save(place / f"{number}.png")
