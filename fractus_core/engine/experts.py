"""A mixture of experts routed by phases: von Mises gates over the experts' own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.engine.config import EngineConfig
from fractus_core.engine.dispatch import Layout, layout
from fractus_core.engine.farey import expert_phases
from fractus_core.engine.kuramoto import phase_vector

EPS = 1e-12


class LowRankExperts(nn.Module):
    """E experts `gelu(x V1 U1 + b1) V2 U2 + b2`, each with two matrices of rank r."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        E, d, r, f = config.n_experts, config.d_model, config.expert_rank, config.d_ff
        self.V1, self.U1 = _normal(E, d, r), _normal(E, r, f)
        self.V2, self.U2 = _normal(E, f, r), _normal(E, r, d, scale=(2 * config.n_layers) ** -0.5)
        self.b1 = nn.Parameter(torch.zeros(E, f))
        self.b2 = nn.Parameter(torch.zeros(E, d))

    def forward(self, x: Tensor, at: Layout) -> Tensor:
        """Token copies x (..., d_model), each through its own expert."""
        hidden = at.mm(at.mm(x, self.V1), self.U1, self.b1)
        hidden = F.gelu(hidden, approximate="tanh")
        return at.mm(at.mm(hidden, self.V2), self.U2, self.b2)


class DenseExperts(nn.Module):
    """E experts `gelu(x W1 + b1) W2 + b2`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        E, d, f = config.n_experts, config.d_model, config.d_ff
        self.W1, self.W2 = _normal(E, d, f), _normal(E, f, d, scale=(2 * config.n_layers) ** -0.5)
        self.b1 = nn.Parameter(torch.zeros(E, f))
        self.b2 = nn.Parameter(torch.zeros(E, d))

    def forward(self, x: Tensor, at: Layout) -> Tensor:
        """As `LowRankExperts.forward`."""
        hidden = F.gelu(at.mm(x, self.W1, self.b1), approximate="tanh")
        return at.mm(hidden, self.W2, self.b2)


class PhaseRoutedExperts(nn.Module):
    """Each token visits the `top_k` experts whose phases are nearest to the mean of its own.

    gates = softmax((kappa / T) cos(mean phase - phi_e)), renormalised over the chosen. The
    auxiliary loss is lb = E sum((P_e - 1/E)^2), P the mean gate.
    """

    directions: Tensor
    low_rank_class: type[LowRankExperts] = LowRankExperts

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        self.top_k = config.top_k
        self.n_experts = config.n_experts
        self.sharpness = config.gate_sharpness
        self.routing = config.routing
        phases = torch.tensor(expert_phases(config.n_experts))
        directions = torch.stack([phases.cos(), phases.sin()])
        self.register_buffer("directions", directions, persistent=False)
        kind = self.low_rank_class if config.expert_rank else DenseExperts
        self.experts = kind(config)
        self.all_mean: Callable[[Tensor], Tensor] = itself
        """From the mean gate of the rows at hand to that of all that are read together."""

    def forward(self, x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, C, d_model), theta (B, C, N).

        Returns y like x, the scalar lb, and the chosen experts (B, C, K).
        """
        B, C, d = x.shape
        gates = self.gates(theta[:, -1:] if self.routing == "chunk" else theta)
        weights, chosen = gates.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        weights, chosen = (t.expand(B, C, self.top_k) for t in (weights, chosen))
        y = self.dispatch(x.reshape(B * C, d), weights.flatten(0, 1), chosen.flatten(0, 1))
        mean_gate = self.all_mean(gates.mean((0, 1)))
        lb = self.n_experts * (mean_gate - 1 / self.n_experts).square().sum()
        return y.view(B, C, d), lb, chosen

    def gates(self, theta: Tensor) -> Tensor:
        """(..., N) to (..., E). The cosine of a difference of angles is a product of directions."""
        with torch.autocast(theta.device.type, enabled=False):
            vector = phase_vector(theta)
            # Not F.normalize: its gradient is nan where the phases cancel exactly.
            mean = vector * torch.rsqrt(vector.square().sum(-1, keepdim=True) + EPS)
            return torch.softmax(self.sharpness * (mean @ self.directions), dim=-1)

    def dispatch(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """x (T, d_model), weights and chosen (T, K); returns (T, d_model)."""
        at = layout(chosen, self.n_experts)
        return at.combine(self.experts(at.spread(x), at), weights)


def itself(x: Tensor) -> Tensor:
    """Where all rows are at hand."""
    return x


def _normal(experts: int, fan_in: int, fan_out: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.empty(experts, fan_in, fan_out).normal_(std=scale * fan_in**-0.5))
