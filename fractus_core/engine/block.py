"""One layer of the engine: attention, then experts chosen by phases."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fractus_core.engine.attention import DecayFactors, FractalAttention
from fractus_core.engine.config import EngineConfig
from fractus_core.engine.experts import PhaseRoutedExperts
from fractus_core.engine.kuramoto import KuramotoPhases
from fractus_core.engine.probe import RoutingProbe
from fractus_core.engine.state import BlockState


class TokenShift(nn.Module):
    """x_t moved towards x_{t-1}, per channel (RWKV, arXiv 2305.13048, section 3.1)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.full((d_model,), 0.5))

    def forward(self, x: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
        """x (B, C, d_model), the token before it (B, d_model); returns x shifted, and its last."""
        before = torch.cat([last.unsqueeze(1).to(x.dtype), x[:, :-1]], dim=1)
        return torch.lerp(x, before, self.mix.to(x.dtype)), x[:, -1].float().clone()


class Block(nn.Module):
    """h += Attention(norm(h)); theta = Kuramoto(norm(h), clock); h += Experts(norm(h), theta)."""

    attention_class: type[FractalAttention] = FractalAttention
    phases_class: type[KuramotoPhases] = KuramotoPhases
    experts_class: type[PhaseRoutedExperts] = PhaseRoutedExperts

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        d = config.d_model
        self.norm_attention = nn.LayerNorm(d)
        self.attention = self.attention_class(config)
        self.norm_phases = nn.LayerNorm(d)
        self.phases = self.phases_class(config)
        self.norm_experts = nn.LayerNorm(d)
        self.experts = self.experts_class(config)
        self.shift_attention = TokenShift(d) if config.token_shift else None
        self.shift_experts = TokenShift(d) if config.token_shift else None

        levels = self.attention.state_levels
        self.state_shapes = {
            "S": (levels, config.n_heads, config.d_head, config.d_head),
            "z": (levels, config.n_heads, config.d_head),
            "clock": (config.n_oscillators,),
            "shift_attention": (d,),
            "shift_experts": (d,),
        }

    def initial_state(self, batch_size: int, device: torch.device) -> BlockState:
        zeros = {
            name: torch.zeros(batch_size, *shape, device=device)
            for name, shape in self.state_shapes.items()
        }
        return BlockState(**zeros)

    def forward(
        self, h: Tensor, state: BlockState, decay: DecayFactors, probe: RoutingProbe | None = None
    ) -> tuple[Tensor, Tensor, BlockState]:
        """h (B, C, d_model); returns the new h, the scalar lb and the block's state after it."""
        h, x, theta, state = self.mix(h, state, decay)
        y, lb, chosen = self.experts(x, theta)
        if probe is not None:
            probe.add(theta, chosen, lb)
        return h + y, lb, state

    def mix(
        self, h: Tensor, state: BlockState, decay: DecayFactors
    ) -> tuple[Tensor, Tensor, Tensor, BlockState]:
        """All before the experts; h (B, C, d_model).

        Returns h with what attention adds, and what the experts read, both like h; their phases
        (B, C, N); and the block's state.
        """
        x, last_attention = self.norm_attention(h), state.shift_attention
        if self.shift_attention is not None:
            x, last_attention = self.shift_attention(x, last_attention)
        y, S, z = self.attention(x, state.S, state.z, decay)
        h = h + y

        theta, clock = self.phases(self.norm_phases(h), state.clock)

        x, last_experts = self.norm_experts(h), state.shift_experts
        if self.shift_experts is not None:
            x, last_experts = self.shift_experts(x, last_experts)
        return h, x, theta, BlockState(S, z, clock, last_attention, last_experts)
