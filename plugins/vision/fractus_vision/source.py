"""Images as batches, with a position that is saved and restored to the image."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch

from fractus_core.api import Batch, FractusError, Json, Split
from fractus_vision.augmentation import DRAWS, Augmentation
from fractus_vision.decoding import Pixels
from fractus_vision.draws import Int64, draw, permutation
from fractus_vision.pixels import Decoded

_ORDER, _AUGMENTATION = 1, 2
"""What draws are for, so that no two of them are the same."""


class Images(Protocol):
    """Images that are taken by number."""

    count: int | None
    """How many there are; None: as many as one likes, each of them once."""
    fingerprint: str
    augmented: bool
    """Do mirrored and moved copies add anything; not to what is drawn anew each time."""

    def take(self, indices: Int64) -> tuple[Pixels, Int64]:
        """Pixels (n, size, size, channels) and labels (n,)."""


class Selected:
    """Some of a data set's images; satisfies `Images`."""

    augmented = True

    def __init__(self, decoded: Decoded, numbers: Int64, labels: Int64) -> None:
        """`labels` (classes of the data,) are the numbers to give its classes."""
        self._images, self._numbers = decoded.images, numbers
        self._labels = labels[decoded.labels]
        self.count: int | None = len(numbers)
        identity = [decoded.fingerprint, labels.tolist(), _hash(numbers.tobytes())]
        self.fingerprint = _hash(json.dumps(identity).encode())

    def take(self, indices: Int64) -> tuple[Pixels, Int64]:
        numbers = self._numbers[indices]
        return self._images[numbers], self._labels[numbers]


class ImageSource:
    """Batches of images, each in a stream that starts anew; satisfies `fractus_core`'s `Source`.

    Training reads all images in one order after the other, drawn from `seed` and the number of the
    epoch, and never ends; a batch may hold the last of an epoch and the first of the next. Other
    splits are read once, in an order that is always the same and has all classes early; the last
    batch may be shorter.
    """

    def __init__(
        self, images: Images, split: Split, *, rows: int, seed: int, augmentation: Augmentation
    ) -> None:
        self.rows = rows
        self._images, self._split, self._seed = images, split, seed
        self._train = split == "train"
        if not images.augmented:
            augmentation = Augmentation(mirror=False, shift=0)
        self._augmentation = augmentation
        self._position = 0
        how = [seed, augmentation.mirror, augmentation.shift] if self._train else []
        identity = [images.fingerprint, split, rows, how]
        self.fingerprint = _hash(json.dumps(identity).encode())

    def __iter__(self) -> ImageSource:
        return self

    def __next__(self) -> Batch:
        """Observations (B, channels, size, size) uint8, targets (B,) int64, starts (B,) bool."""
        end = self._position + self.rows
        if not self._train:
            assert self._images.count is not None
            end = min(end, self._images.count)
        positions = np.arange(self._position, end)
        if not len(positions):
            raise StopIteration
        self._position = end
        pixels, labels = self._images.take(self._numbers(positions))
        # A view: in memory the channels stay last, where convolutions are faster.
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2)
        if self._train:
            raw = draw((_AUGMENTATION, self._seed), positions, DRAWS)
            images = self._augmentation(images, raw)
        return Batch(images, torch.from_numpy(labels), torch.ones(len(labels), dtype=torch.bool))

    def cursor(self) -> Json:
        return {"image": self._position}

    def seek(self, cursor: Json) -> None:
        """Raises `FractusError` if there is no such place."""
        position, count = cursor["image"], self._images.count
        if position < 0 or (not self._train and count is not None and position > count):
            raise FractusError(
                f"no image {position}: the {self._split} split has {count}; "
                "resume with the data that the run began with"
            )
        self._position = position

    def _numbers(self, positions: Int64) -> Int64:
        """Which image comes at each position."""
        if self._images.count is None:
            return positions
        epochs, places = np.divmod(positions, self._images.count)
        numbers = [self._order(int(e))[places[epochs == e]] for e in np.unique(epochs)]
        return np.concatenate(numbers)

    def _order(self, epoch: int) -> Int64:
        assert self._images.count is not None
        seed = self._seed if self._train else 0
        return _permutation((_ORDER, seed, epoch), self._images.count)


# A batch may lie across the end of an epoch, while another split is read.
_permutation = lru_cache(maxsize=4)(permutation)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
