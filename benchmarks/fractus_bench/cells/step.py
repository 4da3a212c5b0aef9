"""The whole training step: engine, text head and optimizer, as the trainer `cpu` makes it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from fractus_bench.flops import TRAINING, forward_flops
from fractus_bench.plain import PlainEngine, PlainHead
from fractus_bench.records import Measured, Row
from fractus_bench.timing import compare
from fractus_bench.training import MIDDLE, RandomTokens, make_model, make_trainer, training_step
from fractus_core.engine import ContinuousThoughtEngine, EngineConfig
from fractus_text.embedding import TiedEmbedding

SGD: dict[str, Any] = {"optimizer": "sgd", "accumulation_steps": 8}
"""Trainer options: one step every 8 chunks."""
FASTER: dict[str, dict[str, Any]] = {
    "engine": {},
    "engine, compiled": {"compile": True},
    "engine, bf16": {"precision": "bf16"},
    "engine, bf16, compiled": {"precision": "bf16", "compile": True},
}
"""Trainer options to hold against the reference path."""
TOLERANCE = 1e-4
"""Of the loss, in nats, between two paths that compute the same."""


def against_reference(
    *, repeats: int, vocabulary: int, chunk_len: int, reference_chunk_len: int
) -> Measured:
    """The product against the reference path, from the same weights to the same loss."""
    config = EngineConfig(**MIDDLE)
    engine, head = make_model(vocabulary, config)
    plain, plain_head = make_model(
        vocabulary, config, engine_class=PlainEngine, head_class=PlainHead
    )
    plain.load_state_dict(engine.state_dict())
    plain_head.load_state_dict(head.state_dict())
    difference = abs(first_loss(engine, head) - first_loss(plain, plain_head))
    assert difference < TOLERANCE, f"the paths' losses differ by {difference}"

    calls = {
        "reference path": training_step(plain, plain_head, chunk_len=reference_chunk_len, **SGD)
    }
    labels: dict[str, Row] = {"reference path": {"chunk": reference_chunk_len, "precision": "fp32"}}
    for name, changed in FASTER.items():
        twin = copy.deepcopy(engine), copy.deepcopy(head)
        calls[name] = training_step(*twin, chunk_len=chunk_len, **SGD | changed)
        labels[name] = {"chunk": chunk_len, "precision": changed.get("precision", "fp32")}
    rows = compare(calls, repeats, labels=labels)
    for row in rows:
        add_gflops(row, config, vocabulary, row["chunk"])
    return Measured(rows, {"vocabulary": vocabulary, "loss_difference": difference})


def first_loss(engine: ContinuousThoughtEngine, head: TiedEmbedding) -> float:
    """Of one chunk of 8 rows of 32 tokens, from the empty state."""
    batch = next(RandomTokens(len(head.weight), 8, 32))
    with torch.no_grad():
        state = engine.initial_state(8)
        hidden, _ = engine.tick_chunk(head.embed(batch.observations), state)
        return float(head.score(hidden, batch.targets).loss)


def options(*, repeats: int, vocabulary: int, variants: dict[str, dict[str, Any]]) -> Measured:
    """One engine under different options of the trainer."""
    config = EngineConfig(**MIDDLE)
    calls: dict[str, Callable[[], int]] = {}
    for name, changed in variants.items():
        calls[name] = training_step(*make_model(vocabulary, config), **SGD | changed)
    rows = compare(calls, repeats, labels=variants)
    for row in rows:
        add_gflops(row, config, vocabulary, row.get("chunk_len", 32), head=row.get("head"))
    return Measured(rows, {"vocabulary": vocabulary})


def dynamics(*, repeats: int, vocabulary: int) -> Measured:
    """The default dynamics and the reference dynamics at the same sizes."""
    configs = {
        "default": EngineConfig(**MIDDLE),
        "reference": EngineConfig.reference(**MIDDLE),
    }
    calls = {
        name: training_step(*make_model(vocabulary, config), **SGD)
        for name, config in configs.items()
    }
    rows = compare(calls, repeats)
    for row in rows:
        add_gflops(row, configs[row["variant"]], vocabulary, 32)
    return Measured(rows, {"vocabulary": vocabulary})


def compiled(*, repeats: int, vocabulary: int) -> Measured:
    """The trainer's option `compile`, and how long the compilation takes that no cache helps."""
    torch.compiler.config.force_disable_caches = True
    config = EngineConfig(**MIDDLE)
    trainer, _ = make_trainer(
        *make_model(vocabulary, config), RandomTokens(vocabulary, 8, 32), compile=True, **SGD
    )
    steps = trainer.train(lambda: 0.0)
    calls = {
        "eager": training_step(*make_model(vocabulary, config), **SGD),
        "compiled": lambda: next(steps).tokens,
    }
    rows = compare(calls, repeats)
    for row in rows:
        add_gflops(row, config, vocabulary, 32)
    facts = {"vocabulary": vocabulary, "compile_seconds": trainer.options["compile_seconds"]}
    return Measured(rows, facts)


def add_gflops(
    row: Row, config: EngineConfig, vocabulary: int, chunk_len: int, *, head: str | None = None
) -> None:
    """GFLOP/s of the products that the model needs, forward and backward."""
    parts = forward_flops(config, vocabulary, chunk_len)
    if head == "last":
        parts["head"] /= chunk_len
    row["gflops"] = TRAINING * sum(parts.values()) * row["tokens_per_second"] / 1e9
