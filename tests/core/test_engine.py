"""The calls of the engine: what they return, how they agree, what they refuse."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable

import pytest
import torch
from engines import (
    assert_close,
    assert_identical,
    assert_same_state,
    awake,
    fresh,
    tiny,
    tiny_reference,
    vectors,
    warm,
)
from torch import Tensor

from fractus_core.engine import PRESETS, EngineConfig, EngineState
from fractus_text.embedding import TiedEmbedding

both = pytest.mark.parametrize("config", [tiny(), tiny_reference()], ids=lambda c: c.dynamics)


@both
def test_reading_without_gradients_is_the_same(config: EngineConfig) -> None:
    engine = awake(config)
    x, state = vectors(config, 3, 17), warm(engine)
    hidden, lb, after = engine.tick_chunk_train(x, state)
    plain, plain_after = engine.tick_chunk(x, state)
    assert hidden.shape == x.shape
    assert lb.shape == ()
    assert torch.equal(plain, hidden)
    assert not plain.requires_grad
    assert_identical(plain_after, after)
    assert torch.equal(after.thought, hidden[:, -1])
    assert after.position.tolist() == (state.position + 17).tolist()


@both
def test_a_tick_is_a_chunk_of_one(config: EngineConfig) -> None:
    engine = awake(config)
    x, state = vectors(config, 3, 1), warm(engine)
    chunk, _, after_chunk = engine.tick_chunk_train(x, state)
    hidden, confidence, after = engine.tick_vec(x[:, 0], state)
    assert torch.equal(hidden, chunk[:, 0])
    assert_identical(after, after_chunk)
    head = engine.confidence_head
    odds = (hidden.double() @ head.weight[0].double() + head.bias.double()).exp()
    torch.testing.assert_close(confidence.double(), odds / (1 + odds), rtol=0, atol=1e-6)
    assert engine.confidence_logit(chunk).shape == (3, 1)


def test_lb_is_the_mean_over_tokens_of_the_sum_over_blocks() -> None:
    engine = awake(tiny(thought_stride=0, n_layers=1))
    x, state = vectors(engine.config, 2, 200), engine.initial_state(2)
    _, whole, _ = engine.tick_chunk_train(x, state)
    _, first, middle = engine.tick_chunk_train(x[:, :128], state)
    _, second, _ = engine.tick_chunk_train(x[:, 128:], middle)
    assert whole.item() == pytest.approx((128 * first.item() + 72 * second.item()) / 200, rel=1e-5)


# -------------------------------------------------------------------------------------- the thought


def at(state: EngineState, *position: int) -> EngineState:
    return dataclasses.replace(state, position=torch.tensor(position))


def test_the_thought_enters_at_multiples_of_the_stride() -> None:
    engine = awake(tiny(thought_stride=5))
    state, x = warm(engine), vectors(engine.config, 3, 1)[:, 0]
    gated = x + engine.thought_gate * state.thought
    hidden, _, _ = engine.tick_vec(x, at(state, 10, 11, 14))
    without, _, _ = engine.tick_vec(x, at(state, 1, 1, 1))
    with_thought, _, _ = engine.tick_vec(gated, at(state, 1, 1, 1))
    assert_close(hidden[0], with_thought[0])
    assert_close(hidden[1:], without[1:])
    assert not torch.allclose(hidden[0], without[0], atol=1e-3)


def test_no_stride_no_thought() -> None:
    engine = awake(tiny(thought_stride=0))
    assert engine.thought_gate is None
    state, x = warm(engine), vectors(engine.config, 3, 7)
    other = dataclasses.replace(state, thought=torch.full_like(state.thought, 100.0))
    assert torch.equal(engine.tick_chunk(x, other)[0], engine.tick_chunk(x, state)[0])


def test_thinking_on_has_the_thought_for_input() -> None:
    engine = awake(tiny(thought_stride=5))
    state = warm(engine)
    hidden, confidence, after = engine.tick_vec(None, state)
    fed, fed_confidence, fed_after = engine.tick_vec(
        engine.thought_gate * state.thought, at(state, 1, 1, 1)
    )
    assert_close(hidden, fed)
    assert_close(confidence, fed_confidence)
    assert after.position.tolist() == (state.position + 1).tolist()
    assert_same_state(after, dataclasses.replace(fed_after, position=after.position))


def test_reference_adds_the_thought_to_the_first_position_of_every_call() -> None:
    engine = awake(tiny_reference())
    state, x = warm(engine), vectors(engine.config, 3, 4)
    moved = torch.cat([x[:, :1] + state.thought.unsqueeze(1), x[:, 1:]], dim=1)
    blank = dataclasses.replace(state, thought=torch.zeros_like(state.thought))
    hidden, expected = (engine.tick_chunk(*call)[0] for call in ((x, state), (moved, blank)))
    torch.testing.assert_close(hidden, expected)
    assert torch.equal(
        engine.tick_vec(None, state)[0], engine.tick_vec(torch.zeros(3, 16), state)[0]
    )


# ------------------------------------------------------------------------------ before any training


@pytest.mark.parametrize("n_vocab", [65, 8192])
@pytest.mark.parametrize("preset", ["stage0", "stage1", "stage2", "stage3"])
@torch.no_grad()
def test_an_untrained_model_knows_nothing(preset: str, n_vocab: int) -> None:
    engine = fresh(EngineConfig(**PRESETS[preset]))
    embedding = TiedEmbedding(n_vocab, engine.config.d_model)
    ids = torch.randint(n_vocab, (2, 32))
    hidden, _ = engine.tick_chunk(embedding.embed(ids), engine.initial_state(2))
    logits = embedding.answer(hidden)
    # The mean over all targets alike, which has less noise than a few drawn ones.
    loss = (logits.logsumexp(-1) - logits.mean(-1)).mean().item()
    assert loss == pytest.approx(math.log(n_vocab), rel=0.05)


# ----------------------------------------------------------------------------------------- refusals

Call = Callable[[Tensor], object]


@both
@pytest.mark.parametrize(
    ("x", "both_values"),
    [
        (torch.zeros(2, 5, 16), ("2 rows", "3 streams")),
        (torch.zeros(1, 5, 16), ("1 rows", "3 streams")),
        (torch.zeros(3, 5, 17), ("(3, 5, 17)", "d_model = 16")),
        (torch.zeros(3, 5, 1), ("(3, 5, 1)", "d_model = 16")),
        (torch.zeros(3, 0, 16), ("(3, 0, 16)", "(B, C, d_model)")),
        (torch.zeros(3, 16), ("(3, 16)", "(B, C, d_model)")),
        (torch.zeros(3, 1, 5, 16), ("(3, 1, 5, 16)", "(B, C, d_model)")),
        (torch.zeros(3, 5, 16, dtype=torch.int64), ("torch.int64", "torch.float32")),
        (torch.zeros(3, 5, 16, dtype=torch.bool), ("torch.bool", "torch.float32")),
        (torch.zeros(3, 5, 16, device="meta"), ("meta", "cpu")),
    ],
)
def test_vectors_that_do_not_fit(
    config: EngineConfig, x: Tensor, both_values: tuple[str, str]
) -> None:
    engine = awake(config)
    state = engine.initial_state(3)
    calls: list[Call] = [
        lambda x: engine.tick_chunk_train(x, state),
        lambda x: engine.tick_chunk(x, state),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=".*".join(map(re.escape, both_values))):
            call(x)


@both
@pytest.mark.parametrize(
    "vector", [torch.zeros(2, 16), torch.zeros(1, 16), torch.zeros(3, 15), torch.zeros(3, 16).int()]
)
def test_a_vector_that_does_not_fit(config: EngineConfig, vector: Tensor) -> None:
    engine = awake(config)
    with pytest.raises(ValueError, match=r"rows.*streams|d_model = 16|torch.int32.*torch.float32"):
        engine.tick_vec(vector, engine.initial_state(3))


@pytest.mark.parametrize(
    "other",
    [
        {"n_layers": 1},
        {"n_layers": 3},
        {"d_model": 32},
        {"d_model": 8},
        {"n_heads": 1},
        {"n_heads": 4},
        {"n_levels": 1},
        {"n_levels": 3},
        {"n_oscillators": 1},
        {"n_oscillators": 2},
    ],
    ids=str,
)
def test_a_state_of_another_engine(other: dict[str, int]) -> None:
    engine = awake(tiny())
    state = awake(tiny(**other)).initial_state(3)
    with pytest.raises(ValueError, match="state"):
        engine.tick_chunk_train(vectors(engine.config, 3, 4), state)
    with pytest.raises(ValueError, match=r"state|d_model"):
        engine.tick_vec(None, state)


@pytest.mark.parametrize("batch_size", [0, -1])
def test_no_streams(batch_size: int) -> None:
    with pytest.raises(ValueError, match=f"batch_size = {batch_size}: must be at least 1"):
        awake(tiny()).initial_state(batch_size)
