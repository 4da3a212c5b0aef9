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
SECTION = 32
"""Tokens that are one matrix product: the work within one grows with its square."""
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
    H, L = config.decay_heads or config.n_heads, config.n_levels
    if config.decay == "none":
        return torch.zeros(config.n_heads, L)
    steps = torch.linspace(0, 1, H * L - 1, dtype=torch.float64)
    time_constants = FASTEST * (SLOWEST / FASTEST) ** steps
    time_constants = torch.cat([time_constants, time_constants.new_tensor([LASTING])])
    distinct = (-1 / time_constants).float().view(L, H).T
    return distinct[torch.arange(config.n_heads) % H].contiguous()


@dataclass(frozen=True, slots=True)
class DecayFactors:
    """The powers of g that a section of length c needs; the same in every block."""

    mask: Tensor
    """(H, 1, L, c, c), g^(i - j) where i >= j, else 0."""
    query: Tensor
    """(H, 1, L, c, 1), g^(i + 1): what token i still sees of the carried state."""
    key: Tensor
    """(H, 1, L, 1, c), g^(c - 1 - j): what the end of the section still sees of token j."""
    carry: Tensor
    """(H, L, 1, 1), g^c."""

    @property
    def length(self) -> int:
        return self.mask.shape[-1]

    @classmethod
    def powers(cls, log_decay: Tensor, length: int) -> DecayFactors:
        rate = log_decay[:, None, :, None, None]
        i = torch.arange(length, device=rate.device, dtype=rate.dtype)
        distance = i[:, None] - i[None, :]
        return cls(
            mask=torch.exp(rate * distance.clamp(min=0)).tril(),
            query=torch.exp(rate * (i[:, None] + 1)),
            key=torch.exp(rate * (length - 1 - i[None, :])),
            carry=torch.exp(rate[:, 0] * length),
        )


def section_length(length: int) -> int:
    """Into sections of what length a chunk is cut."""
    return SECTION if length % SECTION == 0 else length


def attend_sections(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
) -> tuple[Tensor, Tensor, Tensor]:
    """The chunked matrix form, over n sections of length c = `decay.length`.

    Args:
        q, k: features of queries and keys, (B, H, n, L, c, D).
        v: values, (B, H, n, c, D).
        S, z: the sums before the first section, fp32, (B, L, H, D, D) and (B, L, H, D).

    Returns:
        Outputs (B, H, n, L, c, D), and the sums after the last section.
    """
    B, H, n, L, c, D = q.shape
    if n * c == 1:
        return attend_token(q, k, v, S, z, decay)
    # A column of ones makes z one more column of S.
    v1 = F.pad(v, (0, 1), value=1.0)
    S1 = torch.cat([S, z.unsqueeze(-1)], dim=-1).transpose(1, 2)
    gained = (k.mT * decay.key.to(k.dtype)).reshape(B, H, n, L * D, c) @ v1
    before = []
    for section in gained.view(B, H, n, L, D, D + 1).unbind(2):
        before.append(S1)
        S1 = S1 * decay.carry + section.to(S1.dtype)
    carried = (q * decay.query.to(q.dtype)) @ torch.stack(before, dim=2).to(q.dtype)
    within = (q @ k.mT) * decay.mask.to(q.dtype)
    total = (within.view(B, H, n, L * c, c) @ v1).view(B, H, n, L, c, D + 1) + carried
    numerator, denominator = torch.split(total, [D, 1], dim=-1)
    S, z = torch.split(S1.transpose(1, 2), [D, 1], dim=-1)
    return numerator / (denominator + EPS), S, z.squeeze(-1)


def attend_token(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend_sections` for a single token: the recurrence itself."""
    q1, k1, v1 = (t[:, :, 0].to(S.dtype) for t in (q, k, v))
    q1, k1 = q1.transpose(1, 2), k1.transpose(1, 2)  # (B, L, H, 1, D)
    carry = decay.carry.transpose(0, 1)
    S = (S * carry).addcmul_(k1.mT, v1.unsqueeze(1))
    z = torch.addcmul(k1.squeeze(-2), z, carry.squeeze(-1))
    y = (q1 @ S) / ((q1 @ z.unsqueeze(-1)) + EPS)
    return y.transpose(1, 2).unsqueeze(2).to(q.dtype), S, z


def attend(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
) -> tuple[Tensor, Tensor, Tensor]:
    """`attend_sections` for q, k (B, H, L, C, D) and v (B, H, C, D); C a multiple of the length."""
    c = decay.length
    q, k = (t.unflatten(3, (-1, c)).transpose(2, 3) for t in (q, k))
    y, S, z = attend_sections(q, k, v.unflatten(2, (-1, c)), S, z, decay)
    return y.transpose(2, 3).flatten(3, 4), S, z


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
            self.head_weight = nn.Parameter(torch.ones(H, 1, 1, D))
            self.head_bias = nn.Parameter(torch.zeros(H, 1, 1, D))
        nn.init.normal_(self.in_proj.weight, std=d**-0.5)
        nn.init.normal_(self.out_proj.weight, std=(2 * config.n_layers * d) ** -0.5)
        nn.init.zeros_(self.in_proj.bias)
        nn.init.zeros_(self.out_proj.bias)

    def forward(
        self, x: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
    ) -> tuple[Tensor, Tensor, Tensor]:
        """x (B, C, d_model) to y of the same shape, and the sums after it."""
        B, C, d = x.shape
        sections = self.in_proj(x).view(B, -1, decay.length, 4 if self.output_gate else 3, d)
        # Each (B, H, n, c, D).
        q, k, v, *gate = (
            part.unflatten(-1, (self.n_heads, -1)).permute(0, 3, 1, 2, 4)
            for part in sections.unbind(3)
        )
        y, S, z = self.attend(self.features(q), self.features(k), v, S, z, decay)
        y = self.mix_levels(y)
        if self.output_gate:
            # RetNet's group norm and swish gate (arXiv 2307.08621, equation 8).
            y = F.layer_norm(y, y.shape[-1:]) * self.head_weight + self.head_bias
            y = y * F.silu(gate[0])
        return self.out_proj(y.permute(0, 2, 3, 1, 4).reshape(B, C, d)), S, z

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
    ) -> tuple[Tensor, Tensor, Tensor]:
        return attend_sections(q, k, v, S, z, decay)

    def features(self, x: Tensor) -> Tensor:
        """f_l for every level, (B, H, n, c, D) to (B, H, n, L, c, D)."""
        x = x.unsqueeze(3) + self.level_offsets.to(x.dtype).view(-1, 1, 1)
        positive = x.relu()
        return (x - positive).exp() + positive  # elu(x) + 1, in a quarter of F.elu's time

    def mix_levels(self, y: Tensor) -> Tensor:
        """(B, H, n, L, c, D) to (B, H, n, c, D)."""
        weights = torch.softmax(self.level_logits, dim=-1)[..., None, :, None, None]
        return (y * weights.to(y.dtype)).sum(3)
