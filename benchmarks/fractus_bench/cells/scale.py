"""How the cost of a token grows with everything it could grow with."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fractus_bench.fit import power_law
from fractus_bench.flops import TRAINING, forward_flops
from fractus_bench.records import Measured, Row
from fractus_bench.shards import open_shards
from fractus_bench.timing import Call, compare
from fractus_bench.training import RandomTokens, make_model, training_step
from fractus_core.engine import PRESETS, EngineConfig
from fractus_text.source import TokenSource

VOCABULARY = 8192
BATCH, CHUNK = 8, 32
"""Where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Point:
    """What is timed at one value of a quantity."""

    call: Call
    config: EngineConfig
    chunk_len: int

    @property
    def mflop(self) -> float:
        """Millions of operations per token, in training."""
        forward = forward_flops(self.config, VOCABULARY, self.chunk_len)
        return TRAINING * sum(forward.values()) / 1e6


def engine(*, repeats: int, field: str, values: list[int]) -> Measured:
    """Training steps of stage0 with one field of `EngineConfig` changed; d_model takes heads of 64,
    ranks and hidden widths with it, as the presets do."""
    points = {}
    for value in values:
        sizes: dict[str, Any] = PRESETS["stage0"] | {field: value}
        if field == "d_model":
            sizes |= {"n_heads": value // 64, "expert_rank": value // 4, "d_ff": value}
        config = EngineConfig(**sizes)
        points[value] = step(config, CHUNK)
    return fitted(points, repeats, field)


def chunk_length(*, repeats: int, values: list[int]) -> Measured:
    """Training steps of stage0 at several chunk lengths."""
    config = EngineConfig(**PRESETS["stage0"])
    return fitted({C: step(config, C) for C in values}, repeats, "chunk")


def stream_length(*, repeats: int, values: list[int]) -> Measured:
    """Reading a chunk, forward and backward, after so many tokens."""
    config, length = EngineConfig(**PRESETS["stage0"]), 128
    made, head = make_model(VOCABULARY, config)
    source = RandomTokens(VOCABULARY, BATCH, length)
    state, read = made.initial_state(BATCH), 0
    points = {}
    for value in values:
        while read < value:
            with torch.no_grad():
                _, state = made.tick_chunk(head.embed(next(source).observations), state)
            read += length

        def go_on(begun: Any = state) -> int:
            batch = next(source)
            hidden, lb, _ = made.tick_chunk_train(head.embed(batch.observations), begun)
            (head.score(hidden, batch.targets).loss + lb).backward()
            return batch.observations.numel()

        points[value] = Point(go_on, config, length)
    return fitted(points, repeats, "tokens_read")


def corpus_size(*, repeats: int, values: list[int]) -> Measured:
    """Training steps of stage0 on token shards of so many tokens."""
    config = EngineConfig(**PRESETS["stage0"])
    points = {}
    with tempfile.TemporaryDirectory() as folder:
        for value in values:
            shards = open_shards(Path(folder), value, VOCABULARY)
            source = TokenSource(shards, "train", batch_size=BATCH, chunk_len=CHUNK, seed=0)
            points[value] = step(config, CHUNK, source)
        return fitted(points, repeats, "corpus_tokens")


def step(config: EngineConfig, chunk_len: int, source: TokenSource | None = None) -> Point:
    """A training step; random tokens unless there is a source."""
    options: dict[str, Any] = {"optimizer": "sgd", "batch_size": BATCH, "chunk_len": chunk_len}
    call = training_step(*make_model(VOCABULARY, config), source, **options)
    return Point(call, config, chunk_len)


def fitted(points: dict[int, Point], repeats: int, name: str) -> Measured:
    """Rows with their value of `name`, and the powers of it that the time and the operations per
    token grow with."""
    calls = {f"{v}": point.call for v, point in points.items()}
    labels: dict[str, Row] = {f"{v}": {name: v} for v in points}
    rows = compare(calls, repeats, labels=labels)
    for row, point in zip(rows, points.values(), strict=True):
        del row["variant"], row["speedup"]
        row["mflop_per_token"] = point.mflop
    values, times = list(points), [row["us_per_token"]["median"] for row in rows]
    return Measured(
        rows,
        {
            "exponent": power_law(values, times)[1],
            "exponent_of_flop_model": power_law(values, [p.mflop for p in points.values()])[1],
        },
    )
