"""Any split of a sequence into ticks and chunks is the same function.

It does not hold for the reference dynamics, which add the thought at the start of each call and
route a chunk by its last token.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from engines import (
    assert_close,
    assert_same_state,
    awake,
    smooth,
    tiny,
    tiny_reference,
    vectors,
    warm,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fractus_core.engine import ContinuousThoughtEngine, EngineConfig, EngineState

TICK = 0
"""In a list of pieces: one `tick_vec`. Any other number is the length of a chunk."""


def read_in_pieces(
    engine: ContinuousThoughtEngine, x: Tensor, state: EngineState, pieces: list[int]
) -> tuple[Tensor, EngineState]:
    hidden = []
    ends = itertools.accumulate(max(length, 1) for length in pieces)
    for length, end in zip(pieces, ends, strict=True):
        if length == TICK:
            h, _, state = engine.tick_vec(x[:, end - 1], state)
            h = h.unsqueeze(1)
        else:
            h, _, state = engine.tick_chunk_train(x[:, end - length : end], state)
        hidden.append(h)
    return torch.cat(hidden, dim=1), state


def total(pieces: list[int]) -> int:
    return sum(max(length, 1) for length in pieces)


@torch.no_grad()
def assert_split_changes_nothing(config: EngineConfig, pieces: list[int], seed: int) -> None:
    engine = awake(config, seed)
    x, state = vectors(config, 3, total(pieces), seed), warm(engine)
    hidden, _, after = engine.tick_chunk_train(x, state)
    split_hidden, split_after = read_in_pieces(engine, x, state, pieces)
    assert_close(split_hidden, hidden)
    assert_same_state(split_after, after)


@given(
    pieces=st.lists(st.integers(TICK, 20), min_size=1, max_size=10),
    stride=st.sampled_from([0, 1, 3, 5, 128]),
    seed=st.integers(0, 100),
)
@example(pieces=[TICK] * 30, stride=7, seed=0)
@settings(max_examples=15)
def test_short_pieces(pieces: list[int], stride: int, seed: int) -> None:
    assert_split_changes_nothing(smooth(thought_stride=stride), pieces, seed)


@given(
    pieces=st.lists(st.integers(TICK, 300), min_size=2, max_size=4),
    stride=st.sampled_from([0, 37, 128]),
    seed=st.integers(0, 100),
)
@example(pieces=[129, TICK, 127, 128, 1], stride=128, seed=0)
@example(pieces=[TICK, 300, 256], stride=37, seed=0)
@example(pieces=[64, 31, 33, TICK, 96, 32], stride=0, seed=0)
@settings(max_examples=10)
def test_long_pieces(pieces: list[int], stride: int, seed: int) -> None:
    assert_split_changes_nothing(smooth(thought_stride=stride), pieces, seed)


@pytest.mark.parametrize(
    "switches",
    [
        {"decay": "none"},
        {"output_gate": False},
        {"token_shift": False},
        {"phase_drive": "mean"},
        {"final_norm": False},
        {"expert_rank": 0},
        {"n_levels": 1},
        {"n_levels": 3, "n_heads": 4},
        {"n_layers": 1},
    ],
    ids=str,
)
def test_with_other_switches(switches: dict[str, object]) -> None:
    assert_split_changes_nothing(smooth(**switches), [3, TICK, 9, TICK, TICK, 1, 4], seed=1)


@torch.no_grad()
def test_sparse_routing_flips_few_tokens() -> None:
    """A choice between two experts that are equally near may fall either way."""
    config = tiny(n_experts=64, d_model=32)
    engine = awake(config)
    x, state = vectors(config, 3, 120), warm(engine)
    hidden, _ = engine.tick_chunk(x, state)
    split, _ = read_in_pieces(engine, x, state, [30, *[TICK] * 20, 7, 63])
    error = (split - hidden).abs().amax(-1)
    assert error.median() < 1e-5
    assert (error > 1e-3).double().mean() < 0.05


def test_rows_are_reset_between_pieces() -> None:
    """As training does it: rows begin anew at different times, and strides come apart."""
    config = smooth()
    engine = awake(config)
    x = vectors(config, 3, 30)
    state = engine.initial_state(3)
    hidden = []
    for t in range(30):
        starts = torch.tensor([t == 4, t == 13, t in (13, 20)])
        h, _, state = engine.tick_vec(x[:, t], state.reset(starts))
        hidden.append(h)
    streams = [(0, 0, 4), (0, 4, 30), (1, 0, 13), (1, 13, 30), (2, 0, 13), (2, 13, 20), (2, 20, 30)]
    for row, start, end in streams:
        alone, _ = engine.tick_chunk(x[row : row + 1, start:end], engine.initial_state(1))
        for t in range(start, end):
            assert_close(hidden[t][row], alone[0, t - start])


@pytest.mark.parametrize("pieces", [[TICK] * 12, [5, TICK, 6]], ids=str)
def test_gradients_too(pieces: list[int]) -> None:
    """With an undetached state, all gradients but omega's.

    The clock is detached where it is carried from call to call, so that each call's share of
    omega's gradient counts its own ticks only.
    """
    config = smooth()
    engine = awake(config)
    state = warm(engine)
    weight = torch.randn(3, 12, config.d_model)

    def gradients(pieces: list[int]) -> dict[str, Tensor]:
        x = vectors(config, 3, 12).requires_grad_()
        engine.zero_grad()
        hidden, _ = read_in_pieces(engine, x, state, pieces)
        (hidden * weight).sum().backward()
        assert x.grad is not None
        named = {n: p.grad for n, p in engine.named_parameters() if p.grad is not None}
        return {**named, "input": x.grad}

    # Positions 17, 6 and 0 with a stride of 5: a chunk of 12 is itself cut where thoughts enter.
    whole, split = gradients([12]), gradients(pieces)
    assert whole.keys() == split.keys()
    for name, gradient in whole.items():
        error = (split[name] - gradient).abs().max() / gradient.abs().max()
        if not name.endswith("omega"):
            assert error < 1e-3, f"{name}: {error:.1e}"


def test_omega_learns_from_the_ticks_of_a_call() -> None:
    engine = awake(smooth(thought_stride=0, n_layers=1))
    x, state = vectors(engine.config, 3, 12), warm(engine)
    omega = engine.blocks[0].phases.omega
    whole = torch.autograd.grad(engine.tick_chunk_train(x, state)[0].square().sum(), omega)[0]
    ticks = read_in_pieces(engine, x, state, [TICK] * 12)[0]
    split = torch.autograd.grad(ticks.square().sum(), omega)[0]
    assert split.abs().max() > 0
    assert (whole - split).abs().max() > 0.1 * whole.abs().max()


@torch.no_grad()
def test_reference_is_another_function_of_each_split() -> None:
    config = tiny_reference()
    engine = awake(config)
    x, state = vectors(config, 3, 12), warm(engine)
    hidden, _ = engine.tick_chunk(x, state)
    split, _ = read_in_pieces(engine, x, state, [5, TICK, 6])
    assert (split - hidden).abs().max() > 0.1
