"""One token after the other, and whether the hundred-thousandth costs what the thousandth did."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import psutil
import torch

from fractus_bench.records import Measured, Row
from fractus_bench.timing import compare
from fractus_bench.training import make_model
from fractus_core.engine import PRESETS, EngineConfig, Stream

TICKS = 100
"""In each timed call."""


def ticks(*, repeats: int, streams: int, vocabulary: int, places: list[int]) -> Measured:
    """Greedy decoding at the width of stage0, by streams that have read `places` tokens.

    They are kept and timed in turns at the end, so that a slow minute hits them alike; also with
    compiled ticks, where so few streams can have them.
    """
    engine, head = make_model(vocabulary, EngineConfig(**PRESETS["stage0"]))
    engines = {"eager": engine.eval()}
    if streams * engine.config.top_k <= engine.config.n_experts:
        engines["compiled"] = copy.deepcopy(engine)
        engines["compiled"].compile_ticks(streams)
    stream = Stream(engine, head, batch_size=streams)
    go_on = decoder(stream)
    calls: dict[str, Callable[[], int]] = {}
    labels: dict[str, Row] = {}
    sizes = []
    for before, place in zip([0, *places], places, strict=False):
        go_on(place - before)
        sizes.append(psutil.Process().memory_info().rss)
        for kind, each in engines.items():
            name = f"{kind}, token {place:,}"
            copied = Stream(each, head, state=stream.state.clone())
            calls[name] = partial(decoder(copied), TICKS)
            labels[name] = {"streams": streams}
    rows = compare(calls, repeats, per="tick", labels=labels)
    for row in rows:
        row["tokens_per_second"] = streams * row["ticks_per_second"]
    return Measured(rows, {"vocabulary": vocabulary, "grown_mb": (sizes[-1] - sizes[0]) / 1e6})


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
