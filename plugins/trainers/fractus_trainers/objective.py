"""What a trainer descends: one chunk, from observations to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.api import Batch, ContinuousThoughtEngine, EngineState, Frontend, Json


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of reading one chunk."""

    objective: Tensor
    """What to descend: the loss with its auxiliary ones, a scalar."""
    loss: Tensor
    lb: Tensor
    hidden: Tensor
    """(B, C, d_model), without its graph."""
    state: EngineState

    @property
    def tokens(self) -> int:
        return self.hidden.shape[0] * self.hidden.shape[1]


class Objective(nn.Module):
    """Engine and front-ends as one module, whose forward pass is a whole chunk."""

    def __init__(
        self, engine: ContinuousThoughtEngine, frontends: Sequence[Frontend], options: Json
    ) -> None:
        super().__init__()
        self.engine = engine
        self.frontends = nn.ModuleList(cast(nn.Module, frontend) for frontend in frontends)
        self.lb_coef: float = options["lb_coef"]
        self.confidence_coef: float = options["confidence_coef"]
        self.last: bool = options["head"] == "last"

    def forward(self, index: int, batch: Batch, state: EngineState, half: bool) -> Outcome:
        """Read `batch` through the front-end at `index`; `half` computes in bf16 where it may."""
        frontend = cast(Frontend, self.frontends[index])
        with torch.autocast(state.device.type, dtype=torch.bfloat16, enabled=half):
            vectors = frontend.embed(batch.observations)
            hidden, lb, state = self.engine.tick_chunk_train(vectors, state)
            score = frontend.score(hidden, batch.targets, last=self.last)
        # The confidence learns to know, without a say in what is known.
        logit = self.engine.confidence_logit(hidden[:, -1].detach())
        doubt = F.binary_cross_entropy_with_logits(logit, score.correct.float())
        return Outcome(
            objective=score.loss + self.lb_coef * lb + self.confidence_coef * doubt,
            loss=score.loss.detach(),
            lb=lb.detach(),
            hidden=hidden.detach(),
            state=state,
        )
