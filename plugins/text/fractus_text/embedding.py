"""Tokens to vectors and hidden vectors to logits, through one matrix."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.api import Score
from fractus_text.half_cross_entropy import half_cross_entropy

CE_CHUNK = 256
"""Rows of logits that exist at once in the fused cross entropy. Measured; torch's own choice is
several times slower on CPU."""


class TiedEmbedding(nn.Module):
    """V token vectors, also the output head (Press and Wolf, arXiv 1608.05859).

    Small enough at first that an untrained model's cross entropy is ln V: logits of hidden vectors
    with unit channels have the variance d_model std^2.
    """

    def __init__(self, n_vocab: int, d_model: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_vocab, d_model).normal_(std=0.02))
        self.uniform_loss = math.log(n_vocab)

    def embed(self, observations: Tensor) -> Tensor:
        """Token ids (B, C) to vectors (B, C, d_model)."""
        # The head's gradient is dense: only the rows that were read are added to it.
        return F.embedding(observations, self.weight, sparse=observations.device.type == "cpu")

    def answer(self, hidden: Tensor) -> Tensor:
        """Hidden (..., d_model) to logits (..., V)."""
        return F.linear(hidden, self.weight)

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        """Cross entropy of hidden (B, C, d_model) against the next tokens (B, C)."""
        if last:
            hidden, targets = hidden[:, -1:], targets[:, -1:]
        loss = self._loss(hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1))
        with torch.no_grad():
            correct = self.answer(hidden[:, -1]).argmax(-1) == targets[:, -1]
        return Score(loss=loss, weight=targets.numel(), correct=correct)

    @torch.no_grad()
    def resample(
        self,
        observations: Tensor,
        hidden: Tensor,
        *,
        probability: float,
        temperature: float,
        generator: torch.Generator,
    ) -> Tensor:
        """See `Resampler.resample`; observations (B, C)."""
        B, C = observations.shape
        # Drawn on the CPU, whatever the device, so that nothing waits for it.
        row, before = torch.nonzero(
            torch.rand(B, C - 1, generator=generator) < probability, as_tuple=True
        )
        luck = torch.rand(len(row), 1, generator=generator)
        row, before, luck = (t.to(hidden.device, non_blocking=True) for t in (row, before, luck))
        logits = self.answer(hidden[row, before].to(self.weight.dtype)).float() / temperature
        below = torch.softmax(logits, dim=-1).cumsum(-1)
        chosen = torch.searchsorted(below, luck * below[:, -1:]).squeeze(-1)
        mixed = observations.clone()
        mixed[row, before + 1] = chosen.clamp(max=len(self.weight) - 1)
        return mixed

    def _loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        if torch.is_autocast_enabled(hidden.device.type):
            return half_cross_entropy(hidden.bfloat16(), self.weight.bfloat16(), targets)
        return F.linear_cross_entropy(
            hidden,
            self.weight,
            targets,
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=CE_CHUNK),
        )
