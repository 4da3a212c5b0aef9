"""Whole training steps, on tokens that cost nothing to read."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch

from fractus_core.api import (
    Batch,
    ContinuousThoughtEngine,
    EngineConfig,
    Frontend,
    Json,
    Lane,
    Option,
    Source,
)
from fractus_text.embedding import TiedEmbedding
from fractus_trainers.cpu import CpuTrainer
from fractus_trainers.online import OnlineTrainer
from fractus_trainers.options import CPU

MIDDLE: dict[str, Any] = {
    "d_model": 512,
    "n_heads": 8,
    "n_layers": 4,
    "n_experts": 16,
    "top_k": 2,
    "expert_rank": 64,
    "d_ff": 512,
    "n_oscillators": 8,
    "coupling_rank": 4,
}
"""The size at which most is measured; fields of `EngineConfig`."""


class RandomTokens:
    """A few batches over and over; satisfies `fractus_core.contract.Source`."""

    fingerprint = ""

    def __init__(self, vocabulary: int, rows: int, chunk_len: int) -> None:
        self.rows = rows
        draw = torch.Generator().manual_seed(0)
        tokens = torch.randint(vocabulary, (4, rows, chunk_len + 1), generator=draw)
        none = torch.zeros(rows, dtype=torch.bool)
        self._batches = itertools.cycle(
            [Batch(t[:, :-1].contiguous(), t[:, 1:].contiguous(), none) for t in tokens]
        )

    def __iter__(self) -> RandomTokens:
        return self

    def __next__(self) -> Batch:
        return next(self._batches)

    def cursor(self) -> Json:
        return {}

    def seek(self, cursor: Json) -> None:
        pass


def make_model(
    vocabulary: int,
    config: EngineConfig,
    *,
    engine_class: type[ContinuousThoughtEngine] = ContinuousThoughtEngine,
    head_class: type[TiedEmbedding] = TiedEmbedding,
) -> tuple[ContinuousThoughtEngine, TiedEmbedding]:
    torch.manual_seed(0)
    return engine_class(config), head_class(vocabulary, config.d_model)


def make_trainer(
    engine: ContinuousThoughtEngine,
    frontend: TiedEmbedding,
    source: Source,
    *,
    kind: type[OnlineTrainer] = CpuTrainer,
    **options: Any,
) -> tuple[OnlineTrainer, Lane]:
    """A trainer with the default options of `cpu` but for `options`, ready to train one lane."""
    given = {**defaults(CPU), "threads": torch.get_num_threads()}
    trainer = kind({**given, **options}, seed=0)
    lane = Lane("text", cast(Frontend, frontend), source, engine.initial_state(source.rows))
    trainer.prepare(engine, [lane])
    return trainer, lane


def training_step(
    engine: ContinuousThoughtEngine,
    frontend: TiedEmbedding,
    source: Source | None = None,
    **options: Any,
) -> Callable[[], int]:
    """A call that makes one optimizer step and returns the tokens it read."""
    if source is None:
        vocabulary = len(frontend.weight)
        sizes = {"batch_size": 8, "chunk_len": 32} | options
        source = RandomTokens(vocabulary, sizes["batch_size"], sizes["chunk_len"])
    trainer, _ = make_trainer(engine, frontend, source, **options)
    steps = trainer.train(lambda: 0.0)
    return lambda: next(steps).tokens


def defaults(options: Iterable[Option]) -> dict[str, Any]:
    return {option.name: option.default for option in options}
