"""The phases against a double loop, an adaptive solver and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from engines import assert_close, assert_same_state, awake, tiny, vectors, warm
from scipy.integrate import solve_ivp
from torch import Tensor

from fractus_core.engine import kuramoto
from fractus_core.engine.kuramoto import KuramotoPhases, order_parameter
from fractus_core.engine.reference import ReferencePhases

TWO_PI = 2 * math.pi


def module(kind: type[KuramotoPhases] = KuramotoPhases) -> KuramotoPhases:
    torch.manual_seed(0)
    return kind(tiny(n_oscillators=6, coupling_rank=3)).double()


def random_phases(*shape: int) -> Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(1)).double()


def naive_velocity(phases: KuramotoPhases, theta: list[float], damping: list[float]) -> list[float]:
    """omega_i + sum_j K_ij sin(theta_j - theta_i) - damping."""
    omega, u, lam = (p.tolist() for p in (phases.omega, phases.coupling_u, phases.coupling_lambda))
    N = len(theta)
    velocity = []
    for i in range(N):
        pull = 0.0
        for j in range(N):
            K = sum(u[i][r] * lam[r] * u[j][r] for r in range(len(lam)))
            pull += K * math.sin(theta[j] - theta[i])
        velocity.append(omega[i] + pull - damping[i])
    return velocity


@pytest.mark.parametrize("kind", [KuramotoPhases, ReferencePhases])
def test_velocity(kind: type[KuramotoPhases]) -> None:
    phases, theta = module(kind), random_phases(6)
    coupling = (phases.coupling_u * phases.coupling_lambda) @ phases.coupling_u.T
    damping = 0.01 * (theta.sin() if kind is KuramotoPhases else theta)
    expected = naive_velocity(phases, theta.tolist(), damping.tolist())
    actual = phases.velocity(theta, coupling)
    torch.testing.assert_close(actual.tolist(), expected, rtol=0, atol=1e-12)


def step_error(monkeypatch: pytest.MonkeyPatch, dt: float) -> float:
    phases, theta = module(), random_phases(6)
    solution = solve_ivp(
        lambda _, y: naive_velocity(phases, y.tolist(), [0.01 * math.sin(a) for a in y]),
        (0, dt),
        theta.numpy(),
        method="DOP853",
        rtol=1e-12,
        atol=1e-12,
    )
    monkeypatch.setattr(kuramoto, "DT", dt)
    with torch.no_grad():
        return float(abs(phases.step(theta).numpy() - solution.y[:, -1]).max())


def test_step_against_a_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kuramoto.DT == 0.1
    assert step_error(monkeypatch, 0.01) < 1e-9
    # One step of a fourth-order method is wrong by O(dt^5).
    assert 20 < step_error(monkeypatch, 0.1) / step_error(monkeypatch, 0.05) < 50


def test_step_is_periodic() -> None:
    phases, theta = module(), random_phases(5, 6)
    turns = TWO_PI * torch.randint(-3, 4, theta.shape)
    torch.testing.assert_close(phases.step(theta + turns), phases.step(theta) + turns)
    other = module(ReferencePhases)
    assert not torch.allclose(other.step(theta + turns), other.step(theta) + turns, atol=1e-3)


def test_clock_may_be_wrapped_anywhere() -> None:
    engine = awake(tiny())
    state, x = warm(engine), vectors(engine.config, 3, 8)
    turned = state.clone()
    for block in turned.blocks:
        block.clock.add_(TWO_PI * torch.tensor([1.0, -2.0, 3.0, 1.0]))
    hidden, after = engine.tick_chunk(x, state)
    other_hidden, other_after = engine.tick_chunk(x, turned)
    assert_close(other_hidden, hidden)
    assert_same_state(other_after, after)


def test_clock_in_closed_form_equals_ticking() -> None:
    phases = KuramotoPhases(tiny())
    with torch.no_grad():
        phases.omega.copy_(torch.tensor([0.04, -0.05, 3.0, -7.0]))
    start, x = torch.rand(2, 4) * TWO_PI, torch.zeros(2, 100, 16)
    theta, clock = phases(x, start)
    ticked = start
    for t in range(100):
        theta_t, ticked = phases(x[:, t : t + 1], ticked)
        # With no input, theta is the clock after one step of the coupling.
        assert_close(theta_t[:, 0].sin(), theta[:, t].sin())
    exact = start.double() + 100 * 0.1 * phases.omega.double()
    for wrapped in (clock, ticked):
        assert not wrapped.requires_grad
        assert (wrapped >= 0).all()
        assert (wrapped <= TWO_PI + 1e-6).all()
        assert torch.cos(wrapped - exact).min() > 1 - 1e-7


def test_reference_carries_no_clock() -> None:
    phases, clock = ReferencePhases(tiny(phase_drive="mean")), torch.rand(2, 4)
    theta, after = phases(torch.zeros(2, 5, 16), clock)
    assert torch.equal(after, clock)
    # From the offsets 2 pi i / N, whatever the token or its place.
    assert torch.equal(theta, theta[:1, :1].expand_as(theta))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_phases_are_fp32_under_autocast(dtype: torch.dtype) -> None:
    phases, x = KuramotoPhases(tiny()), vectors(tiny(), 2, 5)
    plain = phases(x, torch.zeros(2, 4))[0]
    with torch.autocast("cpu", dtype):
        assert torch.equal(phases(x, torch.zeros(2, 4))[0], plain)


def test_order_parameter() -> None:
    assert order_parameter(torch.full((2, 8), 1.3)).tolist() == pytest.approx([1.0, 1.0])
    evenly = torch.arange(8) * TWO_PI / 8
    assert order_parameter(evenly).item() == pytest.approx(0.0, abs=1e-6)
    theta = random_phases(5)
    r = abs(sum(complex(math.cos(a), math.sin(a)) for a in theta.tolist())) / 5
    assert order_parameter(theta).item() == pytest.approx(r)
