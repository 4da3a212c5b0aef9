"""Rows that were put together, made to answer as often as their tokens occur.

A row is input and output at once. As a mean of others it is a fair input, but its logit is that of
its pieces: a token that does not occur in the text would be as likely as the letters it is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from fractus_core.api import ContinuousThoughtEngine, Source
from fractus_text.embedding import TiedEmbedding
from fractus_text.logits import rows_at_once

COUNTED = 1 << 20
"""Tokens of training data whose frequencies are counted."""
READ = 4096
"""Tokens of it, at least, that the engine reads."""
EVEN = 0.003
"""The share of all probability that every token has alike, for those that were not met."""
SCALES = (1.0, 0.7, 0.5, 0.35, 0.25)
"""Of the rows, to choose from."""
ROUNDS = 3
"""Corrections of the shifts for each scale."""


@torch.no_grad()
def calibrate(engine: ContinuousThoughtEngine, embedding: TiedEmbedding, source: Source) -> float:
    """Scale all rows alike, and shift each along one direction, until on a sample of the training
    data each token's mean probability is its frequency. Of several scales, that with the least
    loss is taken, and returned.

    The direction is the one in which hidden vectors vary least for their mean: a shift along it
    is the bias that a tied head does not have.
    """
    weight = embedding.weight
    frequency = _frequencies(source, len(weight)).to(weight.device)
    sample = _Sample.read(engine, embedding, source)
    best = min(
        (_Fit.of(sample, weight, frequency, scale) for scale in SCALES), key=lambda fit: fit.loss
    )
    weight.copy_(best.scale * weight + best.shifts[:, None] * sample.direction)
    return best.scale


def _frequencies(source: Source, vocabulary: int) -> Tensor:
    counts, cursor = torch.zeros(vocabulary), source.cursor()
    while counts.sum() < COUNTED:
        counts += torch.bincount(next(source).targets.flatten(), minlength=vocabulary)
    source.seek(cursor)
    return (1 - EVEN) * counts / counts.sum() + EVEN / vocabulary


@dataclass(slots=True)
class _Sample:
    hidden: Tensor
    """(n, d_model)."""
    targets: Tensor
    """(n,)."""
    direction: Tensor = field(init=False)
    """(d_model,), with a product of 1 with the mean hidden vector."""

    def __post_init__(self) -> None:
        mean, covariance = self.hidden.mean(0), self.hidden.T.cov()
        ridge = covariance.trace() / len(mean)
        along = torch.linalg.solve(covariance + ridge * torch.eye(len(mean)).to(mean.device), mean)
        self.direction = along / (along @ mean)

    @classmethod
    def read(
        cls, engine: ContinuousThoughtEngine, embedding: TiedEmbedding, source: Source
    ) -> _Sample:
        hidden: list[Tensor] = []
        targets: list[Tensor] = []
        state, cursor = engine.initial_state(source.rows), source.cursor()
        while sum(len(part) for part in targets) < READ:
            batch = next(source).to(state.device)
            vectors = embedding.embed(batch.observations)
            read, state = engine.tick_chunk(vectors, state.reset(rows=batch.starts.cpu()))
            hidden.append(read.float().flatten(0, 1))
            targets.append(batch.targets.flatten())
        source.seek(cursor)
        return cls(torch.cat(hidden), torch.cat(targets))

    def parts(self, vocabulary: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Hidden vectors and targets, so many at once that their logits fit."""
        rows = rows_at_once(vocabulary)
        yield from zip(self.hidden.split(rows), self.targets.split(rows), strict=True)


@dataclass(frozen=True, slots=True)
class _Fit:
    scale: float
    shifts: Tensor
    """(V,)."""
    loss: float

    @classmethod
    def of(cls, sample: _Sample, weight: Tensor, frequency: Tensor, scale: float) -> _Fit:
        shifts = torch.zeros_like(frequency)
        for _ in range(ROUNDS):
            mean, _ = cls._answers(sample, weight, scale, shifts)
            # A token that the engine is sure never to see has a mean of 0.
            shifts += frequency.log() - mean.clamp(min=torch.finfo(mean.dtype).tiny).log()
            shifts -= shifts @ frequency  # softmax does not see it, the engine's input would
        return cls(scale, shifts, cls._answers(sample, weight, scale, shifts)[1])

    @staticmethod
    def _answers(
        sample: _Sample, weight: Tensor, scale: float, shifts: Tensor
    ) -> tuple[Tensor, float]:
        """Mean probabilities (V,) and mean loss in nats."""
        rows = scale * weight + shifts[:, None] * sample.direction
        mean, loss = torch.zeros_like(shifts), 0.0
        for hidden, targets in sample.parts(len(weight)):
            logits = hidden @ rows.T
            loss += float(F.cross_entropy(logits, targets, reduction="sum"))
            mean += logits.softmax(-1).sum(0)
        n = len(sample.targets)
        return mean / n, loss / n
