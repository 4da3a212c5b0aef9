"""Extreme inputs and long streams."""

from __future__ import annotations

import statistics
import time

import psutil
import pytest
import torch
from engines import awake, fresh, size_of, tensors, tiny, tiny_reference, vectors
from torch import Tensor

from fractus_core.engine import EngineConfig

EXTREMES = {
    "+1e4": torch.full((3, 6, 16), 1e4),
    "-1e4": torch.full((3, 6, 16), -1e4),
    "both": 1e4 * torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(0)).sign(),
    "zero": torch.zeros(3, 6, 16),
    "one channel": torch.eye(16)[:6].expand(3, 6, 16) * 1e4,
}


@pytest.mark.parametrize("config", [tiny(), tiny_reference()], ids=lambda c: c.dynamics)
@pytest.mark.parametrize("start", [fresh, awake])
@pytest.mark.parametrize("x", EXTREMES.values(), ids=EXTREMES)
def test_extreme_inputs(config: EngineConfig, start, x: Tensor) -> None:
    engine = start(config)
    x = x.clone().requires_grad_()
    hidden, lb, state = engine.tick_chunk_train(x, engine.initial_state(3))
    ticked, confidence, state = engine.tick_vec(x[:, 0], state)
    thought, _, state = engine.tick_vec(None, state)
    (hidden.square().mean() + ticked.square().mean() + thought.mean() + lb).backward()
    for tensor in (hidden, lb, ticked, thought, confidence, *tensors(state).values()):
        assert tensor.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    for name, parameter in engine.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name


def lone_stream(**changes) -> tuple:
    config = tiny(n_layers=1, expert_rank=0, thought_stride=128, **changes)
    engine = awake(config)
    return engine, engine.initial_state(1), vectors(config, 100, 1)


@torch.inference_mode()
def test_five_thousand_ticks() -> None:
    engine, state, x = lone_stream()
    sizes, loudness = [], []
    for t in range(5_000):
        hidden, _, state = engine.tick_vec(x[t % 100], state)
        if t % 500 == 0:
            sizes.append(size_of(state))
            loudness.append(hidden.square().mean().item())
    assert all(tensor.isfinite().all() for tensor in tensors(state).values())
    assert len(set(sizes)) == 1
    assert max(loudness) < 10 * min(loudness)
    assert state.position.tolist() == [5_000]


@pytest.mark.endurance
@torch.inference_mode()
def test_a_million_ticks() -> None:
    """About 15 minutes on one core."""
    engine, state, x = lone_stream(d_model=32)
    process = psutil.Process()
    durations = []
    warm_up, million = 5_000, 1_000_000
    for t in range(million):
        began = time.perf_counter()
        hidden, _, state = engine.tick_vec(x[t % 100], state)
        took = time.perf_counter() - began
        if warm_up <= t < warm_up + 1_000 or t >= million - 1_000:
            durations.append(took)
        if t == warm_up:
            memory = process.memory_info().rss
        if t % 10_000 == 0:
            assert hidden.isfinite().all()
    assert all(tensor.isfinite().all() for tensor in tensors(state).values())
    assert process.memory_info().rss - memory < 20e6
    first, last = durations[:1_000], durations[1_000:]
    assert statistics.median(last) < 1.5 * statistics.median(first)
