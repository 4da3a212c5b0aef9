"""One token after the other, and whether the millionth costs what the thousandth did."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import psutil
import torch

from fractus_bench.records import Measured, Row
from fractus_bench.timing import compare
from fractus_bench.training import make_model
from fractus_core.api import keep_freed_memory
from fractus_core.engine import PRESETS, ContinuousThoughtEngine, EngineConfig, Stream
from fractus_text.embedding import TiedEmbedding

TICKS = 100
"""In each timed call."""


def flatness(*, repeats: int, vocabulary: int, places: list[int]) -> Measured:
    """Greedy decoding at the width of stage0, by a stream that has read `places` tokens.

    Its states are kept and timed in turns at the end, so that a slow minute hits them alike.
    """
    engine, head = model(vocabulary)
    stream = Stream(engine, head)
    stream.compile()
    go_on = decoder(stream)
    calls: dict[str, Callable[[], int]] = {}
    sizes = []
    for before, place in zip([0, *places], places, strict=False):
        go_on(place - before)
        sizes.append(psutil.Process().memory_info().rss)
        eager = Stream(engine, head, state=stream.state.clone())
        calls[f"eager, token {place:,}"] = partial(decoder(eager), TICKS)
        calls[f"compiled, token {place:,}"] = partial(decoder(stream.peek()), TICKS)
    rows = compare(calls, repeats, per="tick")
    return Measured(rows, {"vocabulary": vocabulary, "grown_mb": (sizes[-1] - sizes[0]) / 1e6})


def batches(*, repeats: int, vocabulary: int, streams: list[int]) -> Measured:
    """Greedy decoding by several streams side by side; `speedup` is in tokens."""
    engine, head = model(vocabulary)
    calls: dict[str, Callable[[], int]] = {}
    labels: dict[str, Row] = {}
    for kind in ("eager", "compiled"):
        for n in streams:
            stream = Stream(engine, head, batch_size=n)
            if kind == "compiled":
                stream.compile()
            decode = decoder(stream)
            variant = f"{kind}, {n} stream{(n > 1) * 's'}"
            calls[variant] = lambda n=n, decode=decode: n * decode(TICKS)  # type: ignore[misc]
            labels[variant] = {"streams": n}
    rows = compare(calls, repeats, labels=labels)
    for row in rows:
        row["ticks_per_second"] = row["tokens_per_second"] / row["streams"]
    return Measured(rows, {"vocabulary": vocabulary})


def model(vocabulary: int) -> tuple[ContinuousThoughtEngine, TiedEmbedding]:
    """Of stage0, in a process that decodes as `docs/engine.md` advises."""
    keep_freed_memory()
    engine, head = make_model(vocabulary, EngineConfig(**PRESETS["stage0"]))
    return engine.eval(), head


def decoder(stream: Stream) -> Callable[[int], int]:
    """A call that goes on for so many ticks, each token the likeliest, and returns how many."""
    token = torch.zeros(stream.state.batch_size, dtype=torch.int64)

    def decode(count: int) -> int:
        nonlocal token
        for _ in range(count):
            logits, _ = stream.tick(token)
            token = logits.argmax(-1)
        return count

    return decode
