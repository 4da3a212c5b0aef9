"""How far a grown model's answers are from those before, on held-out data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from fractus_core.contract import Batch, Frontend
from fractus_core.engine.engine import ContinuousThoughtEngine
from fractus_core.runs.model import eval_mode

ROWS, CHUNK = 4, 128
"""As the data is read: few rows, for logits of a large vocabulary are many."""
VECTORS = 4096
"""How many are read."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Means over all answers."""

    logits: float
    """The absolute difference of two logits."""
    kl: float
    """From the answers before to those after, in nats."""
    loss_before: float
    loss_after: float

    def __str__(self) -> str:
        return (
            f"logits differ by {self.logits:.2g} on average, KL {self.kl:.2g} nats, "
            f"loss {self.loss_before:.4f} -> {self.loss_after:.4f}"
        )


@torch.no_grad()
def measure(
    before: tuple[ContinuousThoughtEngine, Frontend],
    after: tuple[ContinuousThoughtEngine, Frontend],
    batches: Iterable[Batch],
) -> Drift:
    """Both read the same streams, each from its own beginning."""
    sums, answers, scored, read = torch.zeros(4, dtype=torch.float64), 0, 0, 0
    with eval_mode(*before), eval_mode(*after):
        pair = [_Reader(*before), _Reader(*after)]
        for batch in batches:
            (p, loss_before, weight), (q, loss_after, _) = (reader.read(batch) for reader in pair)
            log_p, log_q = p.log_softmax(-1), q.log_softmax(-1)
            kl = (log_p.exp() * (log_p - log_q)).sum(-1)
            count = kl.numel()
            sums += torch.tensor(
                [
                    (p - q).abs().mean() * count,
                    kl.sum(),
                    loss_before * weight,
                    loss_after * weight,
                ]
            )
            answers, scored, read = answers + count, scored + weight, read + count
            if read >= VECTORS:
                break
    logits, kl_sum, loss_before, loss_after = sums.tolist()
    return Drift(logits / answers, kl_sum / answers, loss_before / scored, loss_after / scored)


class _Reader:
    def __init__(self, engine: ContinuousThoughtEngine, frontend: Frontend) -> None:
        self.engine, self.frontend = engine, frontend
        self.state = engine.initial_state(1)

    def read(self, batch: Batch) -> tuple[Tensor, float, int]:
        """Logits, the loss and what it is a mean over."""
        if self.state.batch_size != len(batch.starts):
            self.state = self.engine.initial_state(len(batch.starts))
        state = self.state.reset(batch.starts)
        vectors = self.frontend.embed(batch.observations)
        hidden, _, self.state = self.engine.tick_chunk_train(vectors, state)
        score = self.frontend.score(hidden, batch.targets)
        return self.frontend.answer(hidden).double(), float(score.loss), score.weight
