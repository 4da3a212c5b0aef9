"""How the cost of a token grows with everything it could grow with."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fractus_bench.records import Measured, Row
from fractus_bench.shards import open_shards
from fractus_bench.timing import compare
from fractus_bench.training import RandomTokens, make_model, training_step
from fractus_core.engine import PRESETS, EngineConfig
from fractus_text.source import TokenSource

VOCABULARY = 8192
BATCH = 8


def engine(*, repeats: int, field: str, values: list[int]) -> Measured:
    """Training steps of stage0 with one field of `EngineConfig` changed; d_model takes heads of 64,
    ranks and hidden widths with it, as the presets do."""
    calls = {}
    for value in values:
        sizes: dict[str, Any] = PRESETS["stage0"] | {field: value}
        if field == "d_model":
            sizes |= {"n_heads": value // 64, "expert_rank": value // 4, "d_ff": value}
        calls[f"{value}"] = training_step(
            *make_model(VOCABULARY, EngineConfig(**sizes)), optimizer="sgd"
        )
    return fitted(calls, repeats, field, values)


def chunk_length(*, repeats: int, values: list[int]) -> Measured:
    """Training steps of stage0 at several chunk lengths."""
    config = EngineConfig(**PRESETS["stage0"])
    calls = {
        f"{C}": training_step(*make_model(VOCABULARY, config), optimizer="sgd", chunk_len=C)
        for C in values
    }
    return fitted(calls, repeats, "chunk", values)


def stream_length(*, repeats: int, values: list[int]) -> Measured:
    """Reading a chunk, forward and backward, after so many tokens."""
    made, head = make_model(VOCABULARY, EngineConfig(**PRESETS["stage0"]))
    source = RandomTokens(VOCABULARY, BATCH, 128)
    state, read = made.initial_state(BATCH), 0
    calls: dict[str, Callable[[], int]] = {}
    for value in values:
        while read < value:
            with torch.no_grad():
                _, state = made.tick_chunk(head.embed(next(source).observations), state)
            read += 128

        def go_on(begun: Any = state) -> int:
            batch = next(source)
            hidden, lb, _ = made.tick_chunk_train(head.embed(batch.observations), begun)
            (head.score(hidden, batch.targets).loss + lb).backward()
            return batch.observations.numel()

        calls[f"{value}"] = go_on
    return fitted(calls, repeats, "tokens_read", values)


def corpus_size(*, repeats: int, values: list[int]) -> Measured:
    """Training steps of stage0 on token shards of so many tokens."""
    config = EngineConfig(**PRESETS["stage0"])
    calls = {}
    with tempfile.TemporaryDirectory() as folder:
        for value in values:
            shards = open_shards(Path(folder), value, VOCABULARY)
            source = TokenSource(shards, "train", batch_size=BATCH, chunk_len=32, seed=0)
            model = make_model(VOCABULARY, config)
            calls[f"{value}"] = training_step(*model, source, optimizer="sgd")
        return fitted(calls, repeats, "corpus_tokens", values)


def fitted(
    calls: dict[str, Callable[[], int]], repeats: int, name: str, values: list[int]
) -> Measured:
    """Rows with their value of `name`, and the power of it that the time per token grows with."""
    labels: dict[str, Row] = {f"{value}": {name: value} for value in values}
    rows = compare(calls, repeats, labels=labels)
    times = [row["us_per_token"]["median"] for row in rows]
    exponent = np.polyfit(np.log(values), np.log(times), 1)[0]
    for row in rows:
        del row["variant"]
    return Measured(rows, {"exponent": float(exponent)})
