"""The front-end `vision`: a stem, a position embedding, and a head on what was read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.api import (
    WHOLE,
    FractusError,
    Json,
    Score,
    Shard,
    Source,
    Split,
    Stream,
    progress_bar,
)
from fractus_vision import glyphs
from fractus_vision.augmentation import Augmentation
from fractus_vision.dataset import Dataset, find
from fractus_vision.draws import Int64
from fractus_vision.pictures import Seen, draw_pictures
from fractus_vision.pixels import Decoded, decode_all, report
from fractus_vision.scan import scan_order
from fractus_vision.source import Images, ImageSource, Selected
from fractus_vision.stems import ConvStem, PatchStem

GLYPHS = "glyphs"
ILLUSTRATED = 2048
"""Held-out images that the pictures are about, at most."""


class VisionFrontend(nn.Module):
    """Reads an image as `n` vectors, one for each place of a grid, and names its class."""

    order: Tensor

    @classmethod
    def infer_schema(cls, data: str, options: Json) -> Json:
        classes = glyphs.CLASSES if data == GLYPHS else _find(data, options).classes
        if len(classes) < 2:
            raise FractusError(f"{data} has {len(classes)} class: give images of at least two")
        return {"classes": list(classes)}

    def __init__(self, d_model: int, options: Json, schema: Json) -> None:
        super().__init__()
        self.options = options
        self.classes: list[str] = schema["classes"]
        self.uniform_loss = math.log(len(self.classes))
        self.size: int = options["size"]
        self.channels = 3 if options["colour"] else 1
        self.stem = (
            ConvStem(d_model, self.channels)
            if options["stem"] == "conv"
            else PatchStem(d_model, self.channels, size=self.size, patch_size=options["patch_size"])
        )
        order = torch.tensor(scan_order(options["scan"], self.stem.side))
        self.register_buffer("order", order, persistent=False)
        self.position = nn.Parameter(torch.empty(len(order), d_model).normal_(std=0.02))
        self.head = nn.Linear(d_model, len(self.classes))
        nn.init.normal_(self.head.weight, std=0.02)  # small: untrained, it knows nothing
        nn.init.zeros_(self.head.bias)
        self._known: dict[str, Decoded] = {}

    # ---------------------------------------------------------------------------------- the data

    def open(
        self,
        data: str,
        split: Split,
        *,
        batch_size: int,
        chunk_len: int,
        seed: int,
        shard: Shard = WHOLE,
    ) -> Source:
        """An image is a chunk, whatever `chunk_len`; `batch_size` counts if the option is 0."""
        images = self._images(data, split, seed, shard)
        augmentation = Augmentation(self.options["mirror"], self.options["shift"])
        rows = self.options["batch_size"] or batch_size
        return ImageSource(images, split, rows=rows, seed=seed, augmentation=augmentation)

    def _images(self, data: str, split: Split, seed: int, shard: Shard) -> Images:
        if data == GLYPHS:
            found = glyphs.Glyphs(
                split, size=self.size, channels=self.channels, seed=seed, shard=shard
            )
            self._class_numbers(data, found.classes)
            return found
        decoded = self._decoded(data)
        numbers = self._class_numbers(data, decoded.classes)
        if split != "validation":  # which is opened again at every evaluation
            faults = [*decoded.faults, *(self._missing(decoded) if split == "train" else ())]
            report(faults, on_invalid=self.options["on_invalid"])
        chosen = self._chosen(decoded, split)
        if split == "train":
            # Every so many-th: classes may lie one after the other.
            chosen = chosen[shard.index :: shard.count]
            if not len(chosen):
                raise FractusError(f"{data} has no image in shard {shard}: use fewer shards")
        return Selected(decoded, chosen, numbers)

    def _decoded(self, data: str) -> Decoded:
        if data not in self._known:
            dataset = _find(data, self.options)
            with progress_bar("Decoding") as progress:
                self._known[data] = decode_all(
                    dataset, size=self.size, channels=self.channels, progress=progress
                )
        return self._known[data]

    def _chosen(self, decoded: Decoded, split: Split) -> Int64:
        return decoded.numbers(split, validation=self.options["validation"])

    def _missing(self, decoded: Decoded) -> list[str]:
        """Classes that cannot be learnt or cannot be checked."""
        missing = []
        splits: tuple[Split, ...] = ("train", "validation")
        for split in splits:
            labels = decoded.labels[self._chosen(decoded, split)]
            for number, name in enumerate(decoded.classes):
                if number not in labels:
                    missing.append(f"{decoded.name}: class {name!r} has no image in {split}")
        return missing

    def _class_numbers(self, data: str, classes: tuple[str, ...]) -> Int64:
        """The number that each class of some data has here."""
        unknown = [name for name in classes if name not in self.classes]
        if unknown:
            raise FractusError(
                f"{data} has a class {unknown[0]!r}; this run knows {', '.join(self.classes)}"
            )
        return np.array([self.classes.index(name) for name in classes])

    # --------------------------------------------------------------------------------- the model

    def embed(self, observations: Tensor) -> Tensor:
        """Images (B, channels, size, size), uint8, to vectors (B, n, d_model) as they are read.

        Raises:
            ValueError: if shape or dtype is another.
        """
        expected = (self.channels, self.size, self.size)
        if observations.dtype != torch.uint8 or observations.shape[1:] != expected:
            raise ValueError(
                f"images are {tuple(observations.shape)} {observations.dtype}: "
                f"must be (B, {', '.join(map(str, expected))}) {torch.uint8}"
            )
        grid = self.stem((observations.float() - 127.5) / 64)
        vectors: Tensor = grid.flatten(2).transpose(1, 2) + self.position
        return vectors[:, self.order]

    def answer(self, hidden: Tensor) -> Tensor:
        """Hidden (..., d_model) to logits (..., classes); of an image, the mean over its vectors.

        The head is linear, so the mean of the answers is the answer to the mean.
        """
        logits: Tensor = self.head(hidden)
        return logits

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        """Cross entropy of hidden (B, n, d_model) against classes (B,).

        `last` scores the answer to the whole image alone, also where every answer is trained.
        """
        if self.options["answer"] == "every" and not last:
            answers = running_answers(self.answer(hidden))
            logits, each = answers[:, -1], targets.repeat_interleave(answers.shape[1])
            loss = F.cross_entropy(answers.flatten(0, 1), each)
        else:
            logits = self.answer(hidden.mean(1))
            loss = F.cross_entropy(logits, targets)
        correct = logits.argmax(-1) == targets
        metrics = {} if self.training else {"accuracy": (float(correct.sum()), len(targets))}
        return Score(loss, len(targets), correct, metrics)

    def illustrate(self, stream: Stream, source: Source, directory: Path, seed: int) -> str:
        seen = Seen(self.classes)
        for batch in source:
            batch = batch.to(self.position.device)
            answers, _ = look(stream, batch.observations)
            seen.add(batch.observations, answers[:, -1], batch.targets)
            if seen.count >= ILLUSTRATED:
                break
        draw_pictures(seen, directory)
        return seen.summary()


def running_answers(logits: Tensor) -> Tensor:
    """Logits (B, n, classes) of each vector to the answers after each: the means so far."""
    counts = torch.arange(1, logits.shape[1] + 1, device=logits.device)
    return logits.float().cumsum(1) / counts[:, None]


@torch.no_grad()
def look(stream: Stream, images: Tensor) -> tuple[Tensor, Tensor]:
    """Read images (B, channels, size, size), each in a stream of its own; `stream` stays as it is.

    Returns the answers after each vector, (B, n, classes) logits; and the confidence in the last,
    (B,).
    """
    fresh = Stream(stream.engine, stream.frontend, batch_size=len(images))
    logits, _ = fresh.tick_chunk_train(images)
    confidence = fresh.engine.confidence_logit(fresh.state.thought).sigmoid()
    return running_answers(logits), confidence


def _find(data: str, options: Json) -> Dataset:
    return find(data, image_column=options["image_column"], label_column=options["label_column"])
