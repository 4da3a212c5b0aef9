"""Every parameter learns from every path that trains it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engines import fresh, tiny, tiny_reference, vectors
from torch import Tensor

from fractus_core.engine import PRESETS, ContinuousThoughtEngine, EngineConfig
from fractus_core.engine.probe import RoutingProbe

ROUNDING = 1e-7
"""A gradient that is smaller is zero but for rounding; the smallest real ones are 1e-5."""

Read = Callable[[ContinuousThoughtEngine, Tensor], tuple[Tensor, Tensor]]


def by_chunk(engine: ContinuousThoughtEngine, x: Tensor) -> tuple[Tensor, Tensor]:
    hidden, lb, _ = engine.tick_chunk_train(x, engine.initial_state(len(x)))
    return hidden, lb


def by_ticks(engine: ContinuousThoughtEngine, x: Tensor) -> tuple[Tensor, Tensor]:
    state, hidden = engine.initial_state(len(x)), []
    for x_t in x.unbind(1):
        h, _, state = engine.tick_vec(x_t, state)
        hidden.append(h)
    return torch.stack(hidden, dim=1), x.new_zeros(())


def thinking(engine: ContinuousThoughtEngine, x: Tensor) -> tuple[Tensor, Tensor]:
    """Most ticks with no input at all."""
    state, hidden = engine.initial_state(len(x)), []
    for t, x_t in enumerate(x.unbind(1)):
        h, _, state = engine.tick_vec(x_t if t % 3 == 0 else None, state)
        hidden.append(h)
    return torch.stack(hidden, dim=1), x.new_zeros(())


def unmoved(engine: ContinuousThoughtEngine, read: Read, *, lb_too: bool = True) -> set[str]:
    """The parameters that get no gradient, of a loss on hidden vectors, confidence and lb."""
    x = vectors(engine.config, 3, 12)
    hidden, lb = read(engine, x)
    torch.manual_seed(3)
    loss = (hidden * torch.randn_like(hidden)).mean()
    logit = engine.confidence_logit(hidden)
    loss = loss + F.binary_cross_entropy_with_logits(logit, torch.ones_like(logit))
    (loss + lb if lb_too else loss).backward()
    still = set()
    for name, parameter in engine.named_parameters():
        assert parameter.grad is None or parameter.grad.isfinite().all(), name
        if parameter.grad is None or parameter.grad.abs().max() < ROUNDING:
            still.add(name)
    return still


paths = pytest.mark.parametrize("read", [by_chunk, by_ticks, thinking])


@paths
@pytest.mark.parametrize(
    "config",
    [
        tiny(),
        tiny(expert_rank=0),
        tiny(token_shift=False, output_gate=False, final_norm=False, decay="none"),
        tiny(phase_drive="mean"),
        tiny(routing="chunk"),
        EngineConfig(**PRESETS["stage0"], thought_stride=4),
    ],
    ids=["default", "dense", "bare", "mean drive", "chunk routing", "stage0"],
)
def test_every_parameter_learns(config: EngineConfig, read: Read) -> None:
    assert unmoved(fresh(config), read) == set()


@paths
@pytest.mark.parametrize("expert_rank", [0, 8])
def test_reference(expert_rank: int, read: Read) -> None:
    engine = fresh(tiny_reference(expert_rank=expert_rank))
    # A tick of the original uses level 0 alone, so that there is nothing to mix.
    exceptions = {f"blocks.{b}.attention.level_logits" for b in range(2)}
    assert unmoved(engine, read) == (set() if read is by_chunk else exceptions)


def test_one_expert_per_token_routes_by_lb_alone() -> None:
    """The only gate, renormalised, is 1: the phases learn from the load balance or not at all."""
    routers = {
        name
        for name, _ in fresh(tiny(top_k=1)).named_parameters()
        if ".phases." in name or ".norm_phases." in name
    }
    assert unmoved(fresh(tiny(top_k=1)), by_chunk, lb_too=False) == routers
    assert unmoved(fresh(tiny(top_k=1)), by_chunk) == set()


def test_a_thought_that_never_entered_teaches_its_gate_nothing() -> None:
    """From a fresh state the first stride has none; the next chunk's gradient is not zero."""
    engine = fresh(tiny(thought_stride=12))
    assert unmoved(engine, by_chunk) == {"thought_gate"}
    engine.zero_grad()
    _, state = engine.tick_chunk(vectors(engine.config, 3, 12), engine.initial_state(3))
    engine.tick_chunk_train(vectors(engine.config, 3, 12), state)[0].square().mean().backward()
    assert engine.thought_gate is not None
    assert engine.thought_gate.grad is not None
    assert engine.thought_gate.grad.abs().max() > 0


@pytest.mark.parametrize("config", [tiny(), tiny_reference()], ids=lambda c: c.dynamics)
def test_every_expert_that_was_visited_learns(config: EngineConfig) -> None:
    engine = fresh(config)
    probe = RoutingProbe(config)
    hidden, _, _ = engine.tick_chunk_train(vectors(config, 3, 200), engine.initial_state(3), probe)
    (hidden * torch.randn_like(hidden)).sum().backward()
    for block, report in zip(engine.layers, probe.report()["blocks"], strict=True):
        visited = torch.tensor(report["hits"]) > 0
        for name, parameter in block.experts.experts.named_parameters():
            assert parameter.grad is not None
            learns = parameter.grad.flatten(1).abs().amax(1) > 0
            assert torch.equal(learns, visited), name
