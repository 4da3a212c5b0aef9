"""The reference path: the same engine and text head, weight for weight, on plain kernels.

Attention as one masked einsum over the whole chunk, weights gathered for each token, all logits at
once. It computes the same loss; what it takes longer is what the product's kernels save.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.api import Score
from fractus_core.engine import ContinuousThoughtEngine, EngineConfig
from fractus_core.engine.attention import DecayFactors, FractalAttention, log_decays
from fractus_core.engine.block import Block
from fractus_core.engine.experts import LowRankExperts, PhaseRoutedExperts
from fractus_core.engine.oracles import attention_einsum, experts_gather
from fractus_text.embedding import TiedEmbedding


class EinsumAttention(FractalAttention):
    log_decay: Tensor

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.register_buffer("log_decay", log_decays(config), persistent=False)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, decay: DecayFactors
    ) -> tuple[Tensor, Tensor, Tensor]:
        # From sections (B, H, n, L, c, D) to the whole chunk (B, H, L, C, D), and back.
        q, k = (t.transpose(2, 3).flatten(3, 4) for t in (q, k))
        y, S, z = attention_einsum(q, k, v.flatten(2, 3), S, z, self.log_decay)
        return y.unflatten(3, (-1, decay.length)).transpose(2, 3), S, z


class GatheredExperts(PhaseRoutedExperts):
    def dispatch(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        assert isinstance(self.experts, LowRankExperts)
        return experts_gather(self.experts, x, weights, chosen)


class PlainBlock(Block):
    attention_class = EinsumAttention
    experts_class = GatheredExperts


class PlainEngine(ContinuousThoughtEngine):
    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.n_layers))


class PlainHead(TiedEmbedding):
    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        if last:
            hidden, targets = hidden[:, -1:], targets[:, -1:]
        logits = self.answer(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        correct = logits[:, -1].detach().argmax(-1) == targets[:, -1]
        return Score(loss=loss, weight=targets.numel(), correct=correct)


def experts_loop(experts: LowRankExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """One expert after the other, on the tokens that chose it. Arguments as `experts_gather`."""
    y = torch.zeros_like(x)
    for e in range(len(experts.V1)):
        token, k = (chosen == e).nonzero(as_tuple=True)
        inner = x[token] @ experts.V1[e] @ experts.U1[e] + experts.b1[e]
        hidden = F.gelu(inner, approximate="tanh")
        outer = hidden @ experts.V2[e] @ experts.U2[e] + experts.b2[e]
        y = y.index_add(0, token, weights[token, k].unsqueeze(-1) * outer)
    return y
