"""A data set as pixels on disk: decoded once, then mapped into memory, never loaded."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Literal, Self

import numpy as np
import numpy.typing as npt

from fractus_core.api import FractusError, Json, Progress, Split, cached
from fractus_vision.dataset import Dataset
from fractus_vision.decoding import InvalidItemError, Pixels, decode, refusing_bombs
from fractus_vision.draws import Int64
from fractus_vision.readers import Item

FORMAT = 1
_BLOCK = 256
"""Images that are decoded together."""
_SHOWN = 5
"""Faults that are told one by one."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """The pixels and labels of a data set, mapped into memory; one part of it after the other."""

    name: str
    """What `--data` was."""
    classes: tuple[str, ...]
    fingerprint: str
    """Of the pixels and labels."""
    faults: tuple[str, ...]
    """What cannot be used, and was left out; each names its file."""
    lengths: Mapping[str, int]
    """Images in each part: `train` and `validation`, or `all`."""
    images: Pixels
    """(n, size, size, channels)."""
    labels: Int64
    """(n,)."""
    hashes: npt.NDArray[np.uint64]
    """(n,) of the pixels of each image."""

    def numbers(self, split: Split, *, validation: float) -> Int64:
        """The numbers of the images of a split.

        Where the data itself has no splits, the fraction `validation` of each class is held out:
        of its images in the order of the hash of their pixels. Images that are equal stay together.
        """
        everything = np.arange(len(self.labels))
        if split == "all":
            return everything
        if "all" in self.lengths:
            return np.flatnonzero(self._held_out(validation) == (split == "validation"))
        train, held_out = np.split(everything, [self.lengths["train"]])
        return train if split == "train" else held_out

    def _held_out(self, validation: float) -> npt.NDArray[np.bool_]:
        chosen = []
        for label in np.unique(self.labels):
            different = np.unique(self.hashes[self.labels == label])
            # One at least, unless it is the only one.
            count = min(max(1, round(validation * len(different))), len(different) - 1)
            chosen.append(different[:count])
        return np.isin(self.hashes, np.concatenate(chosen))


def decode_all(
    dataset: Dataset, *, size: int, channels: int, progress: Progress | None = None
) -> Decoded:
    """The pixels of `dataset`, from the cache if they are there.

    What cannot be used is left out and told in `Decoded.faults`.

    Args:
        progress: Called with images done and in all, while decoding.

    Raises:
        FractusError: nothing can be used, or the cache cannot be written or is damaged.
    """
    identity = {
        "format": FORMAT,
        "dataset": dataset.fingerprint,
        "size": size,
        "channels": channels,
    }

    def make(directory: Path) -> Json:
        return _write(directory, dataset, size, channels, progress)

    found = cached("images", identity, make)
    faults = (*dataset.faults, *found.facts["faults"])
    for part, length in found.facts["lengths"].items():
        if length == 0:
            raise FractusError(
                f"{dataset.name} has no image to use in {part}: {faults[-1]}"
                if faults
                else f"{dataset.name} has no image in {part}"
            )
    # As plain arrays, which index faster than numpy's memmap class and are the same memory.
    images, labels, hashes = (
        np.asarray(np.load(found.directory / f"{name}.npy", mmap_mode="r"))
        for name in ("images", "labels", "hashes")
    )
    return Decoded(
        name=dataset.name,
        classes=dataset.classes,
        fingerprint=hashlib.sha256(json.dumps([found.facts, found.files]).encode()).hexdigest(),
        faults=faults,
        lengths=found.facts["lengths"],
        images=images,
        labels=labels,
        hashes=hashes,
    )


def report(faults: Sequence[str], *, on_invalid: Literal["skip", "refuse"]) -> None:
    """Tell what was left out on stderr, the first few one by one.

    Raises:
        FractusError: there is a fault and `on_invalid` is "refuse".
    """
    if faults and on_invalid == "refuse":
        raise FractusError(
            f"{faults[0]}; mend or remove it, or leave it out with --vision.on_invalid skip"
        )
    for fault in faults[:_SHOWN]:
        print(f"fractus: skipped {fault}", file=sys.stderr)
    if len(faults) > _SHOWN:
        print(f"fractus: skipped {len(faults)} in all", file=sys.stderr)


# --------------------------------------------------------------------------------------- writing


def _write(
    directory: Path, dataset: Dataset, size: int, channels: int, progress: Progress | None
) -> Json:
    """Decode every image into `directory`; returns the facts to keep with it."""
    total, done = sum(map(len, dataset.parts.values())), 0
    faults: list[str] = []
    lengths: dict[str, int] = {}

    def pixels_of(item: Item) -> tuple[Pixels, int] | str:
        try:
            label = dataset.class_number(item.label)
            if item.image is None:
                raise InvalidItemError("it has no image")
            return decode(item.image, size=size, channels=channels), label
        except InvalidItemError as error:
            return f"{item.name}: {error}"

    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        _Writer(directory, (size, size, channels)) as writer,
        refusing_bombs(),
    ):
        for name, part in dataset.parts.items():
            before = writer.count
            for block in _blocks(iter(part)):
                for result in pool.map(pixels_of, block):
                    if isinstance(result, str):
                        faults.append(result)
                    else:
                        writer.add(*result)
                done += len(block)
                if progress:
                    progress(done, total)
            lengths[name] = writer.count - before
    return {"lengths": lengths, "faults": faults}


def _blocks(items: Iterator[Item]) -> Iterator[list[Item]]:
    while block := list(islice(items, _BLOCK)):
        yield block


class _Writer:
    """Appends images to a `.npy` file, whose length is known only at its end."""

    def __init__(self, directory: Path, shape: tuple[int, int, int]) -> None:
        self._directory, self._shape = directory, shape
        self._file = (directory / "images.npy").open("wb")
        self._labels: list[int] = []
        self._hashes: list[int] = []

    @property
    def count(self) -> int:
        return len(self._labels)

    def add(self, pixels: Pixels, label: int) -> None:
        data = pixels.tobytes()
        self._file.write(data)
        self._labels.append(label)
        digest = hashlib.blake2b(data, digest_size=8).digest()
        self._hashes.append(int.from_bytes(digest, "little"))

    def __enter__(self) -> Self:
        self._write_header()
        return self

    def __exit__(self, *_: object) -> None:
        with self._file:
            end = self._file.tell()
            self._file.seek(0)
            self._write_header()
            assert end == self._file.tell() + self.count * math.prod(self._shape)
            _sync(self._file)
        for name, values in (
            ("labels", np.array(self._labels, np.int64)),
            ("hashes", np.array(self._hashes, np.uint64)),
        ):
            with (self._directory / f"{name}.npy").open("wb") as file:
                np.save(file, values, allow_pickle=False)
                _sync(file)

    def _write_header(self) -> None:
        """Equally long whatever the number of images: numpy leaves room for it to grow."""
        shape = (self.count, *self._shape)
        np.lib.format.write_array_header_1_0(
            self._file, {"descr": "|u1", "fortran_order": False, "shape": shape}
        )


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())
