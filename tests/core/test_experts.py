"""Gates, choices, and the layouts in which tokens reach their experts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engines import tiny
from scipy.stats import vonmises
from torch import Tensor

from fractus_core.engine.dispatch import Gathered, Grouped, Padded, layout
from fractus_core.engine.experts import DenseExperts, LowRankExperts, PhaseRoutedExperts
from fractus_core.engine.farey import expert_phases
from fractus_core.engine.kuramoto import phase_vector
from fractus_core.engine.reference import ReferenceExperts, ScaledExperts


def build(kind: type[PhaseRoutedExperts] = PhaseRoutedExperts, **changes: Any) -> Any:
    torch.manual_seed(0)
    routed = kind(tiny(**changes))
    with torch.no_grad():
        for parameter in routed.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return routed


def inputs(routed: PhaseRoutedExperts, rows: int = 3, length: int = 20) -> tuple[Tensor, Tensor]:
    torch.manual_seed(1)
    x = torch.randn(rows, length, 16, requires_grad=True)
    return x, 3 * torch.randn(rows, length, 4)


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def scaled(e: Any, i: int, x: Tensor) -> Tensor:
    hidden = gelu(e.scale1[i] * (x @ e.V1[i] @ e.U1[i]) + e.b1[i])
    return e.scale2[i] * (hidden @ e.V2[i] @ e.U2[i]) + e.b2[i]


def dense(e: Any, i: int, x: Tensor) -> Tensor:
    return gelu(x @ e.W1[i] + e.b1[i]) @ e.W2[i] + e.b2[i]


def low_rank(e: Any, i: int, x: Tensor) -> Tensor:
    return gelu(x @ e.V1[i] @ e.U1[i] + e.b1[i]) @ e.V2[i] @ e.U2[i] + e.b2[i]


def one_by_one(routed: PhaseRoutedExperts, x: Tensor, theta: Tensor, expert: Callable) -> Tensor:
    """Each token's experts in turn, weighted by their gates among the chosen."""
    rows = []
    for token, gates in zip(x.flatten(0, 1), routed.gates(theta).flatten(0, 1), strict=True):
        chosen = sorted(range(routed.n_experts), key=lambda i: -gates[i].item())[: routed.top_k]
        total = sum(gates[i] for i in chosen)
        rows.append(sum(gates[i] / total * expert(routed.experts, i, token) for i in chosen))
    return torch.stack(rows).view_as(x)


@pytest.mark.parametrize("top_k", [1, 2, 8])
@pytest.mark.parametrize(
    ("kind", "expert_rank", "experts", "expert"),
    [
        (PhaseRoutedExperts, 8, LowRankExperts, low_rank),
        (PhaseRoutedExperts, 0, DenseExperts, dense),
        (ReferenceExperts, 8, ScaledExperts, scaled),
        (ReferenceExperts, 0, DenseExperts, dense),
    ],
)
def test_against_experts_one_by_one(
    kind: type[PhaseRoutedExperts], expert_rank: int, experts: type, expert: Callable, top_k: int
) -> None:
    routed = build(kind, expert_rank=expert_rank, top_k=top_k)
    assert type(routed.experts) is experts
    x, theta = inputs(routed)
    theta.requires_grad_()
    actual, expected = routed(x, theta)[0], one_by_one(routed, x, theta, expert)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    wanted = [x, theta, *routed.experts.parameters()]
    cotangent = torch.randn_like(x)
    for ours, theirs in zip(
        torch.autograd.grad(actual, wanted, cotangent),
        torch.autograd.grad(expected, wanted, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


LAYOUTS = {
    "gathered": lambda chosen, counts: Gathered(chosen),
    "grouped": Grouped,
    "padded": lambda chosen, counts: Padded(chosen, counts, int(counts.max())),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize(
    ("kind", "rank", "expert"),
    [
        (PhaseRoutedExperts, 8, low_rank),
        (PhaseRoutedExperts, 0, dense),
        (ReferenceExperts, 8, scaled),
    ],
)
def test_layouts(name: str, kind: type[PhaseRoutedExperts], rank: int, expert: Callable) -> None:
    """On one choice, so that nothing is left but rounding."""
    routed = build(kind, n_experts=64, top_k=3, expert_rank=rank)
    x = torch.randn(50, 16, requires_grad=True)
    weights = torch.rand(50, 3, requires_grad=True)
    chosen = torch.stack([torch.randperm(64)[:3] for _ in range(50)])
    chosen[chosen == 7] = 8  # an expert that nobody visits
    at = LAYOUTS[name](chosen, torch.bincount(chosen.flatten(), minlength=64))
    actual = at.combine(routed.experts(at.spread(x), at), weights)
    expected = torch.stack(
        [
            sum(weights[t, k] * expert(routed.experts, int(chosen[t, k]), x[t]) for k in range(3))
            for t in range(50)
        ]
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5)
    wanted = [x, weights, *routed.experts.parameters()]
    cotangent = torch.randn_like(x)
    ours = torch.autograd.grad(actual, wanted, cotangent)
    theirs = torch.autograd.grad(expected, wanted, cotangent)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert (ours[2][7] == 0).all()


def test_the_layout_fits_the_choices() -> None:
    even = torch.arange(64).remainder(8).view(32, 2)
    assert isinstance(layout(even, 8), Padded)
    assert isinstance(layout(even[:4], 8), Gathered)
    assert isinstance(layout(torch.tensor([[0, 1]]).expand(32, 2), 8), Grouped)  # collapsed
    meta = torch.empty(64, 2, dtype=torch.int64, device="meta")
    assert isinstance(layout(meta, 8), Grouped)  # elsewhere nothing may wait for the choices


def test_gates_are_von_mises() -> None:
    routed = build(gate_kappa=4.0, gate_temperature=2.5)
    theta = 3 * torch.randn(5, 4)
    angles = theta.numpy()
    mean = np.arctan2(np.sin(angles).sum(-1), np.cos(angles).sum(-1))
    density = vonmises.pdf(np.array(expert_phases(8)) - mean[:, None], kappa=1.6)
    expected = density / density.sum(-1, keepdims=True)
    np.testing.assert_allclose(routed.gates(theta).detach(), expected, atol=1e-5)


def test_phases_that_cancel_have_a_finite_gradient() -> None:
    routed = build()
    theta = torch.tensor([[[math.pi, 0.0, -math.pi, 0.0]]], requires_grad=True)
    assert (phase_vector(theta) == 0).all()
    x = torch.randn(1, 1, 16)
    y, lb, _ = routed(x, theta)
    (y.sum() + lb).backward()
    assert y.isfinite().all()
    assert theta.grad is not None
    assert theta.grad.isfinite().all()


def test_load_balance_loss() -> None:
    routed = build()
    x, theta = inputs(routed)
    P = routed.gates(theta).mean((0, 1)).tolist()
    assert routed(x, theta)[1].item() == pytest.approx(8 * sum((p - 1 / 8) ** 2 for p in P))


def test_a_token_goes_to_the_nearest_experts() -> None:
    routed = build()
    x, theta = inputs(routed)
    chosen = routed(x, theta)[2]
    assert chosen.shape == (3, 20, 2)
    mean = torch.atan2(theta.sin().sum(-1), theta.cos().sum(-1))
    distance = 1 - torch.cos(mean.unsqueeze(-1) - torch.tensor(expert_phases(8)))
    nearest = distance.topk(2, largest=False).indices
    assert torch.equal(chosen.sort(-1).values, nearest.sort(-1).values)


def test_chunk_routing_takes_the_last_tokens_phases() -> None:
    by_chunk, by_token = build(routing="chunk"), build()
    x, theta = inputs(by_chunk)
    last = theta[:, -1:].expand_as(theta)
    for actual, expected in zip(by_chunk(x, theta), by_token(x, last), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("amp", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize(
    "sizes", [{"expert_rank": 3}, {"expert_rank": 4}, {"d_ff": 5}, {"d_model": 10}], ids=str
)
def test_sizes_that_are_no_multiple_of_anything(sizes: dict[str, int], amp: bool) -> None:
    """They work or `EngineConfig` refuses them; the grouped product wants aligned rows."""
    try:
        config = tiny(**sizes)
    except ValueError:
        return
    routed = PhaseRoutedExperts(config)
    x = torch.randn(2, 5, config.d_model, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        routed(x, torch.randn(2, 5, 4))[0].float().sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("expert_rank", [0, 8])
def test_bf16_is_close_to_fp32(expert_rank: int) -> None:
    routed = build(expert_rank=expert_rank)
    x, theta = inputs(routed)
    plain, _, chosen = routed(x, theta)
    with torch.autocast("cpu", torch.bfloat16):
        y, lb, chosen_too = routed(x, theta)
    assert torch.equal(chosen_too, chosen)
    assert lb.dtype == torch.float32
    assert (y.float() - plain).norm() < 0.02 * plain.norm()
