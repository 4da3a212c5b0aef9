"""Changes to training clips that leave their class alone, decided by each clip's own draws."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

SHIFT = 0.1
"""Most seconds that a clip is moved, either way."""
STRETCH = 0.15
"""Most that it is slowed down or sped up, and its pitch with it (Ko et al., Interspeech 2015)."""
NOISE_DB = (-60.0, -15.0)
"""White noise, relative to the clip."""
MASKED_MELS = 8
MASKED_FRAMES = 15
"""Most bands and frames that a mask hides (SpecAugment, Park et al., arXiv 1904.08779)."""


class Draws:
    """Random numbers of a batch of clips, row by row from generators of their own."""

    def __init__(self, seeds: Sequence[Sequence[int]]) -> None:
        self._generators = [np.random.default_rng(list(seed)) for seed in seeds]

    def uniform(self, *shape: int) -> Tensor:
        """(B, *shape), from 0 to just below 1."""
        return self._stack([g.random(shape, np.float32) for g in self._generators])

    def normal(self, *shape: int) -> Tensor:
        """(B, *shape), standard normal."""
        return self._stack([g.standard_normal(shape, np.float32) for g in self._generators])

    @staticmethod
    def _stack(rows: list[Any]) -> Tensor:
        return torch.from_numpy(np.stack(rows))


def change_waves(waves: Tensor, draws: Draws, *, sample_rate: int) -> Tensor:
    """Move, stretch and disturb waves (B, samples)."""
    length = waves.shape[1]
    shift, stretch, noise = draws.uniform(3).unbind(1)
    middle = length / 2
    speed = 1 + STRETCH * (2 * stretch - 1)
    start = middle + SHIFT * sample_rate * (2 * shift - 1)
    places = (torch.arange(length) - middle) * speed[:, None] + start[:, None]
    left = places.floor()
    weight = places - left
    index = left.long()
    padded = F.pad(waves, (1, 1))  # silence beyond both ends
    before = padded.gather(1, (index + 1).clamp(0, length + 1))
    after = padded.gather(1, (index + 2).clamp(0, length + 1))
    waves = torch.lerp(before, after, weight)
    low, high = NOISE_DB
    level = 10 ** ((low + (high - low) * noise) / 20)
    power = waves.square().mean(1).sqrt()
    return waves + (level * power)[:, None] * draws.normal(length)


def mask(levels: Tensor, draws: Draws) -> Tensor:
    """Hide a run of bands and a run of frames of (B, frames, mels) behind silence."""
    _, frames, mels = levels.shape
    hidden_mels = _runs(draws, mels, MASKED_MELS)
    hidden_frames = _runs(draws, frames, MASKED_FRAMES)
    return levels.masked_fill(hidden_frames[:, :, None] | hidden_mels[:, None, :], -1.0)


def _runs(draws: Draws, length: int, longest: int) -> Tensor:
    """(B, length) bool: a run of true, up to `longest`, somewhere."""
    size, place = draws.uniform(2).unbind(1)
    size = (size * (min(longest, length) + 1)).floor()
    start = (place * (length - size + 1)).floor()
    at = torch.arange(length)
    return (at >= start[:, None]) & (at < (start + size)[:, None])
