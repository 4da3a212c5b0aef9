"""Small engines, their inputs and states, for the tests to share."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fractus_core.engine import ContinuousThoughtEngine, EngineConfig, EngineState

SHAKESPEARE = Path(__file__).parents[2].parent / "shared" / "data" / "text" / "tinyshakespeare.txt"

SIZES: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "n_experts": 8,
    "top_k": 2,
    "expert_rank": 8,
    "d_ff": 16,
    "n_oscillators": 4,
    "coupling_rank": 2,
}


def tiny(**changes: Any) -> EngineConfig:
    """The default dynamics, with a stride that chunks seldom are a multiple of."""
    return EngineConfig(**{**SIZES, "thought_stride": 5, **changes})


def tiny_reference(**changes: Any) -> EngineConfig:
    return EngineConfig.reference(**{**SIZES, **changes})


def smooth(**changes: Any) -> EngineConfig:
    """Each token visits every expert, so that no rounding error flips a choice."""
    return tiny(n_experts=4, top_k=4, gate_kappa=1.0, **changes)


def fresh(config: EngineConfig, seed: int = 0) -> ContinuousThoughtEngine:
    torch.manual_seed(seed)
    return ContinuousThoughtEngine(config)


def awake(config: EngineConfig, seed: int = 0) -> ContinuousThoughtEngine:
    """As if trained a while: nothing hides behind a bias, a gate or a head that starts at zero."""
    engine = fresh(config, seed)
    with torch.no_grad():
        for parameter in engine.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        if engine.thought_gate is not None:
            engine.thought_gate.add_(0.5)
    return engine


def vectors(config: EngineConfig, rows: int, length: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, length, config.d_model, generator=generator)


@torch.no_grad()
def warm(engine: ContinuousThoughtEngine) -> EngineState:
    """The state of three streams that began at different times: strides of 5 are misaligned."""
    config = engine.config
    state = engine.initial_state(3)
    _, state = engine.tick_chunk(vectors(config, 3, 11, seed=2), state)
    _, state = engine.tick_chunk(
        vectors(config, 3, 6, seed=3), state.reset(torch.tensor([False, True, False]))
    )
    return state.reset(torch.tensor([False, False, True]))  # positions 17, 6, 0


def tensors(state: EngineState) -> dict[str, Tensor]:
    """Every tensor of a state by name."""
    flat = {
        f"blocks.{b}.{field.name}": getattr(block, field.name)
        for b, block in enumerate(state.blocks)
        for field in dataclasses.fields(block)
    }
    return {**flat, "thought": state.thought, "position": state.position}


def assert_identical(actual: EngineState, expected: EngineState) -> None:
    """To the bit."""
    ours, theirs = tensors(actual), tensors(expected)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def assert_close(actual: Tensor, expected: Tensor, name: str = "") -> None:
    """Equal but for rounding, in units of the largest value.

    A mean of phases that nearly cancel magnifies rounding errors: seldom, hence the median.
    """
    assert actual.shape == expected.shape, name
    error = (actual - expected).abs() / max(1.0, expected.abs().max().item())
    assert error.isfinite().all(), name
    assert error.median() < 1e-5, f"{name}: median {error.median():.1e}"
    assert error.max() < 1e-2, f"{name}: maximum {error.max():.1e}"


def assert_same_state(actual: EngineState, expected: EngineState) -> None:
    """Equal but for rounding; clocks as points on the circle, where 0 and 2 pi are the same."""
    assert torch.equal(actual.position, expected.position)
    ours, theirs = tensors(actual), tensors(expected)
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - {"position"}:
        if name.endswith("clock"):
            assert torch.cos(ours[name] - theirs[name]).min() > 1 - 1e-6, name
        else:
            assert_close(ours[name], theirs[name], name)


def size_of(state: EngineState) -> int:
    """Bytes that a state keeps from being freed: whole storages, also of views."""
    storages = (t.untyped_storage() for t in tensors(state).values())
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def rows_of(state: EngineState, rows: list[int]) -> EngineState:
    """The state of some of the streams."""
    state = state.map(lambda t: t[rows])
    return dataclasses.replace(state, position=state.position[rows])
