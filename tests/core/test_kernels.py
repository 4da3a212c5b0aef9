"""The whole engine on its fast kernels against the same weights on the slow ones.

Choices are discrete: where two experts are equally near, rounding may flip a token, which then
differs by far more than rounding. So equality is asserted statistically.
"""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from engines import assert_close, assert_same_state, awake, smooth, tiny, vectors, warm
from torch import Tensor

from fractus_core.engine import ContinuousThoughtEngine
from fractus_core.engine.experts import PhaseRoutedExperts
from fractus_core.engine.oracles import (
    attention_einsum,
    attention_recurrence,
    experts_gather,
)


def on_oracles(engine: ContinuousThoughtEngine, attention) -> ContinuousThoughtEngine:
    """A copy, weights and all, that reads by the oracles."""
    slow = copy.deepcopy(engine)
    for block in slow.layers:
        block.attention.attend = partial(attend_unsectioned, attention, slow.log_decay)
        block.experts.dispatch = partial(gather, block.experts)
    return slow


def attend_unsectioned(
    attention, log_decay: Tensor, q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay
) -> tuple[Tensor, Tensor, Tensor]:
    """From sections (B, H, n, L, c, D) to the oracles' (B, H, L, C, D), and back."""
    q, k = (t.transpose(2, 3).flatten(3, 4) for t in (q, k))
    y, S, z = attention(q, k, v.flatten(2, 3), S, z, log_decay)
    return y.unflatten(3, (-1, decay.length)).transpose(2, 3), S, z


def gather(routed: PhaseRoutedExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    return experts_gather(routed.experts, x, weights, chosen)


oracles = pytest.mark.parametrize("attention", [attention_recurrence, attention_einsum])


@oracles
@torch.no_grad()
def test_sparse_engine(attention) -> None:
    config = tiny(d_model=64, n_heads=4, n_layers=3, n_experts=64, thought_stride=64)
    engine = awake(config)
    x, state = vectors(config, 3, 100), warm(engine)
    fast, _ = engine.tick_chunk(x, state)
    slow, _ = on_oracles(engine, attention).tick_chunk(x, state)
    error = (fast - slow).abs().amax(-1)
    assert error.median() < 1e-5
    assert (error > 1e-3).double().mean() < 0.05


@oracles
def test_smooth_engine_and_its_gradients(attention) -> None:
    """Where each token visits every expert there is nothing to flip."""
    config = smooth(n_layers=3)
    engine = awake(config)
    slow = on_oracles(engine, attention)
    x, state = vectors(config, 3, 40), warm(engine)
    weight = torch.randn_like(x)
    results = []
    for each in (engine, slow):
        hidden, lb, after = each.tick_chunk_train(x, state)
        ((hidden * weight).mean() + lb).backward()
        results.append((hidden.detach(), after.detach()))
    (fast_hidden, fast_after), (slow_hidden, slow_after) = results
    assert_close(fast_hidden, slow_hidden)
    assert_same_state(fast_after, slow_after)
    for (name, fast_p), slow_p in zip(engine.named_parameters(), slow.parameters(), strict=True):
        if fast_p.grad is None:
            assert slow_p.grad is None, name
            continue
        error = (fast_p.grad - slow_p.grad).abs().max() / slow_p.grad.abs().max()
        assert error < 1e-3, f"{name}: {error:.1e}"
