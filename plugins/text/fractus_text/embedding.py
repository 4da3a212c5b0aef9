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
        # The head's gradient is dense: only the rows that were read are added to it. In place, if
        # the head has a copy of its own: autograd adds up the gradients of one tensor in new ones.
        table: Tensor = getattr(self.weight, "master", self.weight)
        return F.embedding(observations, table, sparse=observations.device.type == "cpu")

    def answer(self, hidden: Tensor) -> Tensor:
        """Hidden (..., d_model) to logits (..., V)."""
        return F.linear(hidden, self.weight)

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        """Cross entropy of hidden (B, C, d_model) against the next tokens (B, C)."""
        if last:
            hidden, targets = hidden[:, -1:], targets[:, -1:]
        if torch.is_autocast_enabled(hidden.device.type):
            loss, top = half_cross_entropy(hidden.bfloat16(), self.weight.bfloat16(), targets)
        else:
            loss = F.linear_cross_entropy(
                hidden.flatten(0, 1),
                self.weight,
                targets.flatten(),
                options=nn.LinearCrossEntropyOptions(batch_chunk_size=CE_CHUNK),
            )
            with torch.no_grad():
                top = self.answer(hidden[:, -1]).argmax(-1)
        return Score(loss=loss, weight=targets.numel(), correct=top == targets[:, -1])

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
