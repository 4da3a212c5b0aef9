"""The front-end `audio`: log-mel frames through two convolutions, and a head on what was heard."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_audio.dataset import Clip, classes_of, find_clips, require_splits
from fractus_audio.mel import LogMel
from fractus_audio.source import ClipSource
from fractus_audio.waves import Waves, read_all, read_wave
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

ILLUSTRATED = 512
"""Held-out clips that the illustration is about, at most."""


class AudioFrontend(nn.Module):
    """Hears a clip as vectors, 25 a second, and names its class."""

    @classmethod
    def infer_schema(cls, data: str, options: Json) -> Json:
        return {"classes": classes_of(data, find_clips(data, validation=options["validation"]))}

    def __init__(self, d_model: int, options: Json, schema: Json) -> None:
        super().__init__()
        self.options = options
        self.classes: list[str] = schema["classes"]
        self.uniform_loss = math.log(len(self.classes))
        self.sample_rate: int = options["sample_rate"]
        self.length = round(options["seconds"] * self.sample_rate)
        self.log_mel = LogMel(self.sample_rate, options["mels"])
        # Over frames and mels alike: what a sound looks like is much the same at another pitch.
        self.front = nn.Sequential(
            nn.Conv2d(1, 24, 5, stride=2, padding=2, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
        )
        bands = math.ceil(options["mels"] / 4)
        self.join = nn.Linear(32 * bands, d_model)
        self.head = nn.Linear(d_model, len(self.classes))
        nn.init.normal_(self.head.weight, std=0.02)  # small: untrained, it knows nothing
        nn.init.zeros_(self.head.bias)
        self._read: dict[str, tuple[list[Clip], Waves, str]] = {}

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
        """A clip is a chunk, whatever `chunk_len`; `batch_size` counts if the option is 0."""
        clips, waves, fingerprint = self._clips(data)
        if split != "all":
            require_splits(data, clips)
        numbers = [n for n, clip in enumerate(clips) if split in ("all", clip.split)]
        if split == "train":
            # Every so many-th: classes may lie one after the other.
            numbers = numbers[shard.index :: shard.count]
            if not numbers:
                raise FractusError(f"{data} has no clip in shard {shard}: use fewer shards")
        labels = [self._class_number(data, clip.label) for clip in clips]
        return ClipSource(
            waves,
            np.array(labels),
            np.array(numbers),
            split,
            log_mel=self.log_mel,
            sample_rate=self.sample_rate,
            rows=self.options["batch_size"] or batch_size,
            seed=seed,
            augment=self.options["augment"],
            fingerprint={
                "waves": fingerprint,
                "labels": labels,
                "numbers": numbers,
                "mels": self.options["mels"],
            },
        )

    def _clips(self, data: str) -> tuple[list[Clip], Waves, str]:
        """Read once, though held-out data is opened at every evaluation."""
        if data not in self._read:
            clips = find_clips(data, validation=self.options["validation"])
            with progress_bar("Reading clips") as progress:
                waves, fingerprint = read_all(
                    [clip.file for clip in clips],
                    sample_rate=self.sample_rate,
                    length=self.length,
                    progress=progress,
                )
            self._read[data] = clips, waves, fingerprint
        return self._read[data]

    def _class_number(self, data: str, label: str) -> int:
        if label not in self.classes:
            raise FractusError(
                f"{data} has a class {label!r}; this run knows {', '.join(self.classes)}"
            )
        return self.classes.index(label)

    def hear(self, file: Path) -> Tensor:
        """Observations (1, frames, mels) of a wav file. Raises `FractusError` if it has none."""
        wave = read_wave(file, sample_rate=self.sample_rate, length=self.length)
        return self.log_mel(wave[None])

    # --------------------------------------------------------------------------------- the model

    def embed(self, observations: Tensor) -> Tensor:
        """Levels (B, frames, mels) to vectors (B, ceil(frames / 4), d_model).

        Raises:
            ValueError: if the shape is another.
        """
        expected = (self.log_mel.frames(self.length), self.options["mels"])
        if observations.dim() != 3 or observations.shape[1:] != expected:
            raise ValueError(
                f"levels are {tuple(observations.shape)}: must be (B, {expected[0]}, {expected[1]})"
            )
        maps: Tensor = self.front(observations.unsqueeze(1))
        vectors: Tensor = self.join(maps.transpose(1, 2).flatten(2))
        return vectors

    def answer(self, hidden: Tensor) -> Tensor:
        """Hidden (..., d_model) to logits (..., classes); of a clip, the mean over its vectors."""
        logits: Tensor = self.head(hidden)
        return logits

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        """Cross entropy of hidden (B, n, d_model) against classes (B,).

        A clip has one answer, so `last` changes nothing.
        """
        logits = self.answer(hidden.mean(1))
        correct = logits.argmax(-1) == targets
        return Score(
            loss=F.cross_entropy(logits, targets),
            weight=len(targets),
            correct=correct,
            metrics={"accuracy": (float(correct.sum()), len(targets))},
        )

    def illustrate(self, stream: Stream, source: Source, directory: Path, seed: int) -> str:
        confusion = np.zeros((len(self.classes), len(self.classes)), np.int64)
        for batch in source:
            batch = batch.to(self.head.weight.device)
            answers = listen_to(stream, batch.observations).argmax(-1)
            np.add.at(confusion, (batch.targets.cpu().numpy(), answers.cpu().numpy()), 1)
            if confusion.sum() >= ILLUSTRATED:
                break
        line = f"{confusion.trace()} of {confusion.sum()} clips right"
        np.fill_diagonal(confusion, 0)
        pairs = [divmod(int(at), len(self.classes)) for at in confusion.ravel().argsort()[::-1][:3]]
        told = [
            f"{self.classes[truth]} as {self.classes[answer]} ({confusion[truth, answer]})"
            for truth, answer in pairs
            if confusion[truth, answer]
        ]
        return f"{line}; most often wrong: {', '.join(told)}" if told else line


@torch.no_grad()
def listen_to(stream: Stream, observations: Tensor) -> Tensor:
    """Logits (B, classes) of clips, each in a stream of its own; `stream` stays as it is."""
    fresh = Stream(stream.engine, stream.frontend, batch_size=len(observations))
    logits, _ = fresh.tick_chunk_train(observations)
    return logits.mean(1)
