"""Is the routing alive before any training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from engines import SHAKESPEARE, fresh
from torch import Tensor

from fractus_core.engine import EngineConfig
from fractus_core.engine.probe import RoutingProbe

ROWS, LENGTH, D_MODEL = 16, 256, 128
experts = pytest.mark.parametrize("n_experts", [64, 128])


def random_input() -> Tensor:
    return torch.randn(ROWS, LENGTH, D_MODEL)


def characters() -> Tensor:
    """Embedded as an untrained front-end does it."""
    if not SHAKESPEARE.is_file():
        pytest.skip(f"no {SHAKESPEARE}")
    text = SHAKESPEARE.read_text()[: ROWS * LENGTH]
    alphabet = sorted(set(text))
    ids = torch.tensor([alphabet.index(c) for c in text]).view(ROWS, LENGTH)
    return (0.02 * torch.randn(len(alphabet), D_MODEL))[ids]


inputs = pytest.mark.parametrize("make_input", [random_input, characters])


def sizes(n_experts: int) -> dict[str, Any]:
    return {
        "d_model": D_MODEL,
        "n_heads": 4,
        "n_layers": 3,
        "n_experts": n_experts,
        "expert_rank": 8,
        "d_ff": 16,
    }


@torch.no_grad()
def report(config: EngineConfig, make_input: Callable[[], Tensor], seed: int) -> dict[str, Any]:
    engine, probe = fresh(config, seed), RoutingProbe(config)
    x = make_input()
    state = engine.initial_state(len(x))
    for chunk in x.split(64, dim=1):
        _, _, state = engine.tick_chunk_train(chunk, state, probe)
    return probe.report()


@experts
@inputs
@pytest.mark.parametrize("seed", range(2))
def test_alive(n_experts: int, make_input: Callable[[], Tensor], seed: int) -> None:
    for block in report(EngineConfig(**sizes(n_experts)), make_input, seed)["blocks"]:
        assert block["entropy"] > 0.9
        assert block["dead"] == 0


@experts
@inputs
@pytest.mark.parametrize("seed", range(2))
def test_reference_is_collapsed(
    n_experts: int, make_input: Callable[[], Tensor], seed: int
) -> None:
    """Its phases start from the mean of a normalised vector, which is zero for every token."""
    config = EngineConfig.reference(**sizes(n_experts), gate_temperature=2.5)
    got = report(config, make_input, seed)
    # Rounding errors around zero are all that tells tokens apart, so that a few experts are hit.
    assert all(block["dead"] > 0.9 * n_experts for block in got["blocks"])
    assert all(block["entropy"] < 0.4 for block in got["blocks"])
    assert 0.95 < got["lb_ceiling_ratio"] < 1.02


def test_reference_phases_are_blind_at_first() -> None:
    config = EngineConfig.reference(**sizes(64))
    block = fresh(config).layers[0]  # type: ignore[index]
    x = block.norm_phases(random_input())
    assert x.mean(-1).abs().max() < 1e-6
    theta, _ = block.phases(x, torch.zeros(ROWS, 8))
    # The same for every token, but for the damping: it depends on the side of 0 to which rounding
    # wraps the first phase.
    assert torch.cos(theta - theta[0, 0]).min() > 1 - 1e-4
