"""Fractal linear attention: causal, normalised, decayed sums at several levels of sharpness.

For level l with offset w_l, and a decay g for each level and head:

    f_l(x) = elu(x + w_l) + 1                   applied to queries and keys
    S_t = g S_{t-1} + k_t v_t^T                 z_t = g z_{t-1} + k_t
    y_t = (q_t S_t) / (q_t z_t)                 levels mixed by a softmax

Linear attention: Katharopoulos et al., arXiv 2006.16236; its chunked form with decay: Yang et al.,
arXiv 2312.06635. B rows, H heads, L levels, C chunk length, D = d_head. In products heads come
before levels, so that a head's levels fold into the rows of one matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.engine.config import EngineConfig

PHI = (1 + math.sqrt(5)) / 2
EPS = 1e-6
"""Added to q z, which is positive but may underflow."""
FASTEST, SLOWEST, LASTING = 2.0, 2 * PHI**16, 2.0**20
"""Time constants in tokens. The lasting one forgets so little that only the sums stay bounded."""


def level_offsets(n_levels: int) -> Tensor:
    """(L,), w_l = (phi^2)^-l."""
    return torch.tensor([PHI ** (-2 * level) for level in range(n_levels)])


def log_decays(config: EngineConfig) -> Tensor:
    """(H, L), ln g, with time constants from 2 tokens to thousands in powers of the golden ratio.

    Without decay S becomes the corpus mean, and each new token weighs 1/t.
    """
    H, L = config.n_heads, config.n_levels
    if config.decay == "none":
        return torch.zeros(H, L)
    steps = torch.linspace(0, 1, max(H * L - 1, 1), dtype=torch.float64)
    time_constants = FASTEST * (SLOWEST / FASTEST) ** steps
    if H * L > 1:
        time_constants = torch.cat([time_constants, time_constants.new_tensor([LASTING])])
    return (-1 / time_constants).float().view(L, H).T.contiguous()


@dataclass(frozen=True, slots=True)
class DecayFactors:
    """The powers of g that a chunk of length C needs; the same in every block."""

    mask: Tensor
    """(H, L, C, C), g^(i - j) where i >= j, else 0."""
    query: Tensor
    """(H, L, C, 1), g^(i + 1): what token i still sees of the carried state."""
    key: Tensor
    """(H, L, 1, C), g^(C - 1 - j): what the end of the chunk still sees of token j."""
    carry: Tensor
    """(H, L, 1, 1), g^C."""

    @classmethod
    def powers(cls, log_decay: Tensor, length: int) -> DecayFactors:
        rate = log_decay[..., None, None]
        i = torch.arange(length, device=rate.device, dtype=rate.dtype)
        distance = i[:, None] - i[None, :]
        return cls(
            mask=torch.exp(rate * distance.clamp(min=0)).tril(),
            query=torch.exp(rate * (i[:, None] + 1)),
            key=torch.exp(rate * (length - 1 - i[None, :])),
            carry=torch.exp(rate * length),
        )


def attend(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
) -> tuple[Tensor, Tensor, Tensor]:
    """The chunked matrix form.

    Args:
        q, k: features of queries and keys, (B, H, L, C, D).
        v: values, (B, H, C, D).
        S, z: the sums before the chunk, fp32, (B, L, H, D, D) and (B, L, H, D).

    Returns:
        Outputs (B, H, L, C, D), and the sums after the chunk.
    """
    B, H, L, C, D = q.shape
    # A column of ones makes z one more column of S.
    v1 = F.pad(v, (0, 1), value=1.0)
    S1 = torch.cat([S, z.unsqueeze(-1)], dim=-1).transpose(1, 2)
    within = (q @ k.mT) * decay.mask.to(q.dtype)
    total = (within.view(B, H, L * C, C) @ v1).view(B, H, L, C, D + 1)
    total = total + (q * decay.query.to(q.dtype)) @ S1.to(q.dtype)
    numerator, denominator = torch.split(total, [D, 1], dim=-1)
    gained = (k.mT * decay.key.to(k.dtype)).reshape(B, H, L * D, C) @ v1
    S1 = S1 * decay.carry + gained.view(B, H, L, D, D + 1).float()
    S, z = torch.split(S1.transpose(1, 2), [D, 1], dim=-1)
    return numerator / (denominator + EPS), S, z.squeeze(-1)


class FractalAttention(nn.Module):
    """One projection to queries, keys, values and the output gate, then `attend`."""

    level_offsets: Tensor

    def __init__(self, config: EngineConfig) -> None:
        super().__init__()
        d, H, D = config.d_model, config.n_heads, config.d_head
        self.n_heads = H
        self.state_levels = config.n_levels
        self.output_gate = config.output_gate
        self.in_proj = nn.Linear(d, (4 if config.output_gate else 3) * d)
        self.out_proj = nn.Linear(d, d)
        self.level_logits = nn.Parameter(torch.zeros(H, config.n_levels))
        self.register_buffer("level_offsets", level_offsets(config.n_levels), persistent=False)
        if config.output_gate:
            self.head_weight = nn.Parameter(torch.ones(H, 1, D))
            self.head_bias = nn.Parameter(torch.zeros(H, 1, D))
        nn.init.normal_(self.in_proj.weight, std=d**-0.5)
        nn.init.normal_(self.out_proj.weight, std=(2 * config.n_layers * d) ** -0.5)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, x: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, C, d_model) to y of the same shape, and the sums after it."""
        B, C, _ = x.shape
        q, k, v, *gate = (
            self.in_proj(x).view(B, C, -1, self.n_heads, x.shape[-1] // self.n_heads).unbind(2)
        )
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        y, S, z = self.attend(self.features(q), self.features(k), v, S, z, decay)
        y = self.mix_levels(y)
        if self.output_gate:
            # RetNet's group norm and swish gate (arXiv 2307.08621, equation 8).
            y = F.layer_norm(y, y.shape[-1:]) * self.head_weight + self.head_bias
            y = y * F.silu(gate[0].transpose(1, 2))
        return self.out_proj(y.transpose(1, 2).reshape(B, C, -1)), S, z

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
    ) -> tuple[Tensor, Tensor, Tensor]:
        return attend(q, k, v, S, z, decay)

    def features(self, x: Tensor) -> Tensor:
        """f_l for every level, (B, H, C, D) to (B, H, L, C, D)."""
        return F.elu(x.unsqueeze(2) + self.level_offsets.to(x.dtype).view(-1, 1, 1)) + 1

    def mix_levels(self, y: Tensor) -> Tensor:
        """(B, H, L, C, D) to (B, H, C, D)."""
        weights = torch.softmax(self.level_logits, dim=-1)[..., None, None]
        return (y * weights.to(y.dtype)).sum(2)
