"""From logits to tokens, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from fractus_core.api import Stream


@dataclass
class Sampler:
    """Chooses the next token of one stream."""

    temperature: float = 1.0
    """0 takes the likeliest."""
    top_k: int = 0
    """Choose among so many of the likeliest; 0: among all."""
    top_p: float = 1.0
    """Choose among the likeliest that together have this probability (Holtzman, 1904.09751)."""
    repetition_penalty: float = 1.0
    """Divides the odds of what was there already (Keskar et al., arXiv 1909.05858)."""
    seed: int = 0

    def __post_init__(self) -> None:
        self._generator = torch.Generator().manual_seed(self.seed)
        self._seen: Tensor | None = None

    def saw(self, tokens: Tensor, vocabulary: int) -> None:
        """Remember tokens (n,) for the repetition penalty: a mask, however many there were."""
        if self._seen is None:
            self._seen = torch.zeros(vocabulary, dtype=torch.bool)
        self._seen[tokens] = True

    def choose(self, logits: Tensor) -> int:
        """A token, from logits (V,)."""
        logits = logits.double().cpu()  # as the generator is
        if self._seen is not None and self.repetition_penalty != 1:
            punished = torch.where(
                logits > 0, logits / self.repetition_penalty, logits * self.repetition_penalty
            )
            logits = torch.where(self._seen, punished, logits)
        if self.temperature == 0:
            return int(logits.argmax())
        logits = (logits - logits.max()) / self.temperature
        if self.top_k:
            least = logits.topk(min(self.top_k, len(logits))).values[-1]
            logits = logits.masked_fill(logits < least, -torch.inf)
        probabilities = torch.softmax(logits, dim=-1)
        if self.top_p < 1:
            ordered, order = probabilities.sort(descending=True)
            # The likeliest stays whatever it has.
            beyond = ordered.cumsum(0) - ordered >= self.top_p
            probabilities = probabilities.index_fill(0, order[beyond], 0.0)
        return int(torch.multinomial(probabilities, 1, generator=self._generator))


def write(stream: Stream, prompt: Tensor, sampler: Sampler, *, stop: int) -> Iterator[int]:
    """Read `prompt` (n,) whole, then give one token after another, until `stop` or for ever.

    Each costs the same, however long the text has become.
    """
    logits, _ = stream.read(prompt.unsqueeze(0))
    vocabulary = logits.shape[-1]
    sampler.saw(prompt, vocabulary)
    while (token := sampler.choose(logits[0])) != stop:
        yield token
        chosen = torch.tensor([token])
        sampler.saw(chosen, vocabulary)
        logits, _ = stream.tick(chosen)
