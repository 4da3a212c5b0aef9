"""Clips as batches, with a position that is saved and restored to the clip."""

from __future__ import annotations

import json
from hashlib import sha256

import numpy as np
import numpy.typing as npt
import torch

from fractus_audio.augmentation import Draws, change_waves, mask
from fractus_audio.mel import LogMel
from fractus_audio.waves import Waves
from fractus_core.api import Batch, Json, Split

Int64 = npt.NDArray[np.int64]
_ORDER, _AUGMENTATION = 1, 2
"""What random numbers are for, so that no two uses share them."""


class ClipSource:
    """Batches of clips, each in a stream that starts anew.

    Training reads all clips in one order after the other, drawn from seed and epoch, and never
    ends; a batch may hold the last of an epoch and the first of the next. Other splits are read
    once, in an order that is always the same and mixes the classes; the last batch may be shorter.
    """

    def __init__(
        self,
        waves: Waves,
        labels: Int64,
        numbers: Int64,
        split: Split,
        *,
        log_mel: LogMel,
        sample_rate: int,
        rows: int,
        seed: int,
        augment: bool,
        fingerprint: Json,
    ) -> None:
        """
        Args:
            waves: (n, samples); labels: (n,).
            numbers: of the clips to read.
            fingerprint: what decides `waves` and `numbers`.
        """
        self._waves, self._labels, self._numbers = waves, labels, numbers
        self._log_mel, self._sample_rate = log_mel, sample_rate
        self._train = split == "train"
        self._seed = seed if self._train else 0
        self._augment = augment and self._train
        self._position = 0
        self.rows = rows
        identity = [fingerprint, split, rows, self._seed, self._augment]
        self.fingerprint = sha256(json.dumps(identity).encode()).hexdigest()

    def __iter__(self) -> ClipSource:
        return self

    def __next__(self) -> Batch:
        """Observations (B, frames, mels), targets (B,), starts (B,)."""
        count = len(self._numbers)
        end = self._position + self.rows
        if not self._train:
            end = min(end, count)
        places = [divmod(position, count) for position in range(self._position, end)]
        if not places:
            raise StopIteration
        self._position = end
        orders = {epoch: self._order(epoch) for epoch, _ in places}
        numbers = [int(orders[epoch][place]) for epoch, place in places]

        waves = torch.from_numpy(self._waves[numbers])
        if self._augment:
            draws = Draws(
                [
                    (_AUGMENTATION, self._seed, epoch, number)
                    for (epoch, _), number in zip(places, numbers, strict=True)
                ]
            )
            waves = change_waves(waves, draws, sample_rate=self._sample_rate)
        levels = self._log_mel(waves)
        if self._augment:
            levels = mask(levels, draws)
        return Batch(
            levels,
            torch.from_numpy(self._labels[numbers]),
            torch.ones(len(numbers), dtype=torch.bool),
        )

    def _order(self, epoch: int) -> Int64:
        draw = np.random.default_rng([_ORDER, self._seed, epoch])
        return draw.permutation(self._numbers)

    def cursor(self) -> Json:
        return {"clip": self._position}

    def seek(self, cursor: Json) -> None:
        self._position = cursor["clip"]
