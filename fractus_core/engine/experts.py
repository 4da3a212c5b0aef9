"""A mixture of experts routed by phases: von Mises gates, grouped matrix products."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.engine.config import EngineConfig
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

    def forward(self, x: Tensor, expert: Tensor, ends: Tensor | None) -> Tensor:
        """Expert `expert[i]` on row i of x (M, d): see `expert_mm`."""
        hidden = self.inner(x, expert, ends)
        hidden = F.gelu(hidden + rows(self.b1, expert).to(hidden.dtype), approximate="tanh")
        y = self.outer(hidden, expert, ends)
        return y + rows(self.b2, expert).to(y.dtype)

    def inner(self, x: Tensor, expert: Tensor, ends: Tensor | None) -> Tensor:
        return expert_mm(expert_mm(x, self.V1, expert, ends), self.U1, expert, ends)

    def outer(self, hidden: Tensor, expert: Tensor, ends: Tensor | None) -> Tensor:
        return expert_mm(expert_mm(hidden, self.V2, expert, ends), self.U2, expert, ends)


class DenseExperts(nn.Module):
    """E experts `gelu(x W1 + b1) W2 + b2`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        E, d, f = config.n_experts, config.d_model, config.d_ff
        self.W1, self.W2 = _normal(E, d, f), _normal(E, f, d, scale=(2 * config.n_layers) ** -0.5)
        self.b1 = nn.Parameter(torch.zeros(E, f))
        self.b2 = nn.Parameter(torch.zeros(E, d))

    def forward(self, x: Tensor, expert: Tensor, ends: Tensor | None) -> Tensor:
        """As `LowRankExperts.forward`."""
        hidden = expert_mm(x, self.W1, expert, ends)
        hidden = F.gelu(hidden + rows(self.b1, expert).to(hidden.dtype), approximate="tanh")
        y = expert_mm(hidden, self.W2, expert, ends)
        return y + rows(self.b2, expert).to(y.dtype)


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

    def forward(self, x: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, C, d_model), theta (B, C, N).

        Returns y like x, the scalar lb, and the chosen experts (B, C, K).
        """
        B, C, d = x.shape
        gates = self.gates(theta[:, -1:] if self.routing == "chunk" else theta)
        weights, chosen = gates.topk(self.top_k, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        weights, chosen = (t.expand(B, C, self.top_k) for t in (weights, chosen))
        y = self.dispatch(x.reshape(B * C, d), weights.reshape(-1), chosen.reshape(-1))
        mean_gate = gates.mean((0, 1))
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
        """Sort token copies by expert, run each expert on its segment, add up what comes back.

        x (T, d_model), weights and chosen (T K,); returns (T, d_model).
        """
        if len(chosen) <= self.n_experts:  # ticks: gathering so few weights is less work
            y = self.experts(x.repeat_interleave(self.top_k, 0), chosen, None)
            each: Tensor = y * weights.unsqueeze(-1).to(y.dtype)
            return each.view(len(x), self.top_k, -1).sum(1)
        order = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=self.n_experts)
        token = order // self.top_k
        y = self.experts(rows(x, token), chosen[order], counts.cumsum(0).to(torch.int32))
        y = y * weights[order].unsqueeze(-1).to(y.dtype)
        return torch.zeros_like(x, dtype=y.dtype).index_add(0, token, y)


def expert_mm(x: Tensor, weight: Tensor, expert: Tensor, ends: Tensor | None) -> Tensor:
    """Row i of x (M, a) times weight[expert[i]] of (E, a, b), in the precision of autocast.

    Either rows are sorted by expert, and `ends` (E,) int32 are the ends of their segments, or it is
    None, and each row's weights are gathered.
    """
    device = x.device.type
    dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
    if ends is None:
        return torch.bmm(x.to(dtype).unsqueeze(1), weight[expert].to(dtype)).squeeze(1)
    return F.grouped_mm(x.to(dtype), weight.to(dtype), offs=ends)


def rows(table: Tensor, index: Tensor) -> Tensor:
    """table[index] for a table (R, n) and an index (M,), with a backward several times faster."""
    return F.embedding(index, table)


def _normal(experts: int, fan_in: int, fan_out: int, scale: float = 1.0) -> nn.Parameter:
    return nn.Parameter(torch.empty(experts, fan_in, fan_out).normal_(std=scale * fan_in**-0.5))
