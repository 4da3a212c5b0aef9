"""Kuramoto phases: what routes each token to its experts.

theta starts at `W norm(h) + clock`, where the clock runs freely (clock_t = clock_0 + t dt omega),
and takes one Runge-Kutta step of coupled oscillators, with U low-rank and Lambda diagonal:

    d theta / dt = omega + cos(theta) U Lambda U^T sin(theta) - sin(theta) U Lambda U^T cos(theta)
                   - damping sin(theta)

Kuramoto, 1975; the coupling is sum_j K_ij sin(theta_j - theta_i) with K = U Lambda U^T.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fractus_core.engine.config import EngineConfig

DT = 0.1
DAMPING = 0.01
TWO_PI = 2 * math.pi


class KuramotoPhases(nn.Module):
    """N oscillators per token. Always computed in fp32: a phase has no use for three digits."""

    offsets: Tensor
    full_precision = True
    """Trainers leave the weights in fp32."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        N, r = config.n_oscillators, config.coupling_rank
        offsets = torch.arange(N) * (TWO_PI / N)
        self.omega = nn.Parameter(torch.empty(N).uniform_(-0.05, 0.05))
        self.coupling_u = nn.Parameter(torch.empty(N, r).uniform_(-1, 1))
        self.coupling_lambda = nn.Parameter(torch.empty(r).uniform_(0.01, 0.51))
        self.drive = nn.Linear(config.d_model, N) if config.phase_drive == "projection" else None
        if self.drive is not None:
            # Phases that all begin near zero have means near zero, and a few experts get everything
            # (at 64 experts, 37 were dead). So they are spread evenly, and moved far by the input.
            nn.init.normal_(self.drive.weight, std=2 * config.d_model**-0.5)
            with torch.no_grad():
                self.drive.bias.copy_(offsets)
        self.register_buffer("offsets", offsets, persistent=False)

    def forward(self, x: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, C, d_model), clock (B, N); returns phases (B, C, N) and the clock after C ticks."""
        with torch.autocast(x.device.type, enabled=False):
            ticks = torch.arange(1, x.shape[1] + 1, device=x.device, dtype=torch.float32)
            clocks = clock.unsqueeze(1) + (DT * ticks).view(1, -1, 1) * self.omega
            theta = self.step(self.start(x.float()) + clocks)
            return theta, torch.remainder(clocks[:, -1].detach(), TWO_PI)

    def start(self, x: Tensor) -> Tensor:
        if self.drive is not None:
            driven: Tensor = self.drive(x)
            return driven
        return TWO_PI * x.mean(-1, keepdim=True) + self.offsets

    def step(self, theta: Tensor) -> Tensor:
        """One classical Runge-Kutta step of length DT."""
        coupling = (self.coupling_u * self.coupling_lambda) @ self.coupling_u.T
        k1 = self.velocity(theta, coupling)
        k2 = self.velocity(torch.add(theta, k1, alpha=DT / 2), coupling)
        k3 = self.velocity(torch.add(theta, k2, alpha=DT / 2), coupling)
        k4 = self.velocity(torch.add(theta, k3, alpha=DT), coupling)
        ends, middle = k1 + k4, k2 + k3
        return torch.add(theta, torch.add(ends, middle, alpha=2), alpha=DT / 6)

    def velocity(self, theta: Tensor, coupling: Tensor) -> Tensor:
        sin, cos = theta.sin(), theta.cos()
        velocity = torch.addcmul(self.omega, cos, sin @ coupling)
        velocity = torch.addcmul(velocity, sin, cos @ coupling, value=-1)
        return torch.sub(velocity, self.damping(theta, sin), alpha=DAMPING)

    def damping(self, theta: Tensor, sin: Tensor) -> Tensor:
        """2-pi periodic, so that where a phase is wrapped makes no difference."""
        return sin


def phase_vector(theta: Tensor) -> Tensor:
    """(..., N) phases to (..., 2), the sums of their cosines and sines; its angle is their mean."""
    return torch.stack([theta.cos().sum(-1), theta.sin().sum(-1)], dim=-1)


def order_parameter(theta: Tensor) -> Tensor:
    """Kuramoto's r in [0, 1] of phases (..., N): 1 where all agree."""
    length: Tensor = torch.linalg.vector_norm(phase_vector(theta), dim=-1)
    return length / theta.shape[-1]
