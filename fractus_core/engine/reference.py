"""The dynamics of the original research code, so that its checkpoints give its numbers.

Found by matching its published vectors; each difference from the default engine is one override:
levels share one carried sum, and a single token uses level 0 alone; phases start from the mean,
wrapped, with a damping that is not periodic and no clock; experts have two scales. The rest is
`EngineConfig.reference`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.engine.attention import DecayFactors, FractalAttention, attend_sections
from fractus_core.engine.block import Block
from fractus_core.engine.config import EngineConfig
from fractus_core.engine.dispatch import Layout
from fractus_core.engine.experts import LowRankExperts, PhaseRoutedExperts
from fractus_core.engine.kuramoto import TWO_PI, KuramotoPhases


class ReferenceAttention(FractalAttention):
    """Every level starts from the same carried sums; what they gain is averaged."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.state_levels = 1
        self.level_logits = nn.Parameter(torch.zeros(config.n_levels))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
    ) -> tuple[Tensor, Tensor, Tensor]:
        levels = q.shape[3]
        S, z = S.expand(-1, levels, -1, -1, -1), z.expand(-1, levels, -1, -1)
        y, S, z = attend_sections(q, k, v, S, z, decay)
        if q.shape[2] * q.shape[4] == 1:
            return y[:, :, :, :1].expand_as(y), S[:, :1], z[:, :1]
        return y, S.mean(1, keepdim=True), z.mean(1, keepdim=True)


class ReferencePhases(KuramotoPhases):
    def forward(self, x: Tensor, clock: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, enabled=False):
            return self.step(torch.remainder(self.start(x.float()), TWO_PI)), clock

    def damping(self, theta: Tensor, sin: Tensor) -> Tensor:
        return theta


class ScaledExperts(LowRankExperts):
    """`s2 (gelu(s1 (x V1 U1) + b1) V2 U2) + b2`."""

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.scale1 = nn.Parameter(torch.ones(config.n_experts, 1))
        self.scale2 = nn.Parameter(torch.ones(config.n_experts, 1))

    def forward(self, x: Tensor, at: Layout) -> Tensor:
        hidden = at.mm(at.mm(x, self.V1), self.U1) * at.of(self.scale1) + at.of(self.b1)
        hidden = F.gelu(hidden, approximate="tanh")
        return at.mm(at.mm(hidden, self.V2), self.U2) * at.of(self.scale2) + at.of(self.b2)


class ReferenceExperts(PhaseRoutedExperts):
    low_rank_class = ScaledExperts


class ReferenceBlock(Block):
    attention_class = ReferenceAttention
    phases_class = ReferencePhases
    experts_class = ReferenceExperts
