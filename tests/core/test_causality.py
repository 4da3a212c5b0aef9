"""No token changes what came before it, no row another."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from engines import (
    assert_close,
    assert_identical,
    assert_same_state,
    awake,
    rows_of,
    smooth,
    tiny,
    tiny_reference,
    vectors,
    warm,
)
from torch import Tensor

from fractus_core.engine import EngineConfig

SWITCHES: dict[str, tuple[Any, ...]] = {
    "decay": ("golden", "none"),
    "output_gate": (True, False),
    "token_shift": (True, False),
    "phase_drive": ("projection", "mean"),
    "thought_stride": (5, 0),
    "final_norm": (True, False),
    "expert_rank": (8, 0),
}
combinations = [
    dict(zip(SWITCHES, values, strict=True)) for values in itertools.product(*SWITCHES.values())
]
both = pytest.mark.parametrize("config", [tiny(), tiny_reference()], ids=lambda c: c.dynamics)


def changed_at(x: Tensor, row: int, token: int) -> Tensor:
    y = x.clone()
    y[row, token] = 3 * torch.randn(x.shape[-1])
    return y


def difference(a: Tensor, b: Tensor) -> Tensor:
    """(B, C), how far hidden vectors are apart."""
    return (a - b).abs().amax(-1)


@pytest.mark.parametrize("switches", combinations, ids=lambda s: " ".join(map(str, s.values())))
def test_nothing_changes_before(switches: dict[str, Any]) -> None:
    config = smooth(**switches)
    engine = awake(config)
    x, state = vectors(config, 3, 8), warm(engine)
    hidden, _ = engine.tick_chunk(x, state)
    for token in (1, 6):
        changed, _ = engine.tick_chunk(changed_at(x, 1, token), state)
        apart = difference(changed, hidden)
        assert (apart[:, :token] == 0).all()  # exactly
        assert (apart[[0, 2]] == 0).all()
        assert apart[1, token] > 1e-2


def test_sparse_routing_is_causal_but_for_rounding() -> None:
    """A token that goes to another expert changes how many rows that expert's product has.

    The sums of a matrix product may be ordered differently for each number of rows.
    """
    config = tiny()
    for seed in range(10):
        engine = awake(config, seed)
        x = vectors(config, 3, 20, seed)
        state = warm(engine)
        hidden, _ = engine.tick_chunk(x, state)
        changed, _ = engine.tick_chunk(changed_at(x, 1, 10), state)
        assert_close(changed[:, :10], hidden[:, :10])
        assert_close(changed[[0, 2]], hidden[[0, 2]])
        assert (changed - hidden)[1, 10].abs().max() > 1e-2


@pytest.mark.parametrize("config", [tiny(), tiny(expert_rank=0)], ids=["low rank", "dense"])
def test_no_gradient_flows_back_in_time(config: EngineConfig) -> None:
    engine = awake(config)
    x = vectors(config, 3, 12).requires_grad_()
    hidden = engine.tick_chunk_train(x, warm(engine))[0]
    for token in (0, 5, 10):
        past = hidden[1, token].sum()
        gradient = torch.autograd.grad(past, x, retain_graph=True)[0]
        assert (gradient[1, token + 1 :] == 0).all()
        assert (gradient[[0, 2]] == 0).all()
        assert (gradient[1, : token + 1].abs().amax(-1) > 0).all()


@pytest.mark.parametrize(
    "config", [tiny(routing="chunk", thought_stride=0), tiny_reference()], ids=lambda c: c.dynamics
)
def test_chunk_routing_looks_ahead(config: EngineConfig) -> None:
    """The last token chooses the experts of the whole chunk: not causal, by construction."""
    engine = awake(config)
    x, state = vectors(config, 3, 9), warm(engine)
    apart = difference(*(engine.tick_chunk(y, state)[0] for y in (x, changed_at(x, 1, 8))))
    assert apart[1, 0] > 1e-4
    assert apart[[0, 2]].max() < 1e-2
    assert apart[[0, 2]].median() < 1e-5


@both
def test_a_row_alone_is_the_same(config: EngineConfig) -> None:
    engine = awake(config)
    x, state = vectors(config, 3, 12), warm(engine)
    hidden, after = engine.tick_chunk(x, state)
    for row in range(3):
        alone, alone_after = engine.tick_chunk(x[[row]], rows_of(state, [row]))
        assert_close(alone, hidden[[row]])
        assert_same_state(alone_after, rows_of(after, [row]))


@both
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_sick_row_is_contained_and_healed(config: EngineConfig, value: float) -> None:
    engine = awake(config)
    x, state = vectors(config, 3, 8), warm(engine)
    sick = x.clone()
    sick[1, 3, 2] = value
    hidden, after = engine.tick_chunk(x, state)
    sick_hidden, sick_after = engine.tick_chunk(sick, state)
    assert not sick_hidden[1].isfinite().all()
    others = [0, 2]
    assert_close(sick_hidden[others], hidden[others])
    assert_same_state(rows_of(sick_after, others), rows_of(after, others))

    healed = sick_after.reset(torch.tensor([False, True, False]))
    assert_identical(rows_of(healed, [1]), engine.initial_state(1))
    again, _ = engine.tick_chunk(x, healed)
    alone, _ = engine.tick_chunk(x[[1]], engine.initial_state(1))
    assert_close(again[[1]], alone)
    for x_t in (x[:, 0], None):
        assert engine.tick_vec(x_t, healed)[0].isfinite().all()
