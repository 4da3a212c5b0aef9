"""Wav files to samples: PCM of any usual width, mixed down, resampled, padded or cropped."""

from __future__ import annotations

import json
import math
import wave
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from fractus_core.api import FractusError, Json, Progress, cached, content_hashes

FORMAT = 1
"""Of what is kept in the cache."""
Waves = npt.NDArray[np.float32]


def read_wave(file: Path, *, sample_rate: int, length: int) -> Tensor:
    """The middle `length` samples of a wav file, from -1 to 1, or all between two silences.

    Channels are mixed down. It is resampled by linear interpolation upwards and by local means
    downwards, which is plain, and lets some of what lies above the new band through; a resampler
    such as torchaudio's does better.

    Raises:
        FractusError: it cannot be read, is damaged or cut short, has no sample, or is not PCM.
    """
    try:
        with wave.open(str(file), "rb") as opened:
            channels, width = opened.getnchannels(), opened.getsampwidth()
            rate, promised = opened.getframerate(), opened.getnframes()
            data = opened.readframes(promised)
    except OSError as error:
        raise FractusError(f"cannot read {file}: {error.strerror}") from None
    except (wave.Error, EOFError, RuntimeError) as error:  # the last where a chunk is too long
        reason = str(error) or "its header is damaged"
        raise FractusError(f"cannot read the wav file {file}: {reason}") from None
    found = len(data) // (channels * width)
    if found < promised:
        raise FractusError(f"the wav file {file} is cut short: {found} of {promised} samples")
    if not promised or not rate:
        raise FractusError(f"the wav file {file} is empty: {promised} samples at {rate} a second")
    if width > 4:
        raise FractusError(f"the wav file {file} has {8 * width} bits a sample: convert it to 16")
    samples = torch.from_numpy(_pcm(data, width).reshape(-1, channels).mean(1))
    samples = _fit(samples, min(promised, math.ceil(length * rate / sample_rate)))
    if rate != sample_rate:
        size = max(1, round(len(samples) * sample_rate / rate))
        mode = "linear" if sample_rate > rate else "area"
        samples = F.interpolate(samples[None, None], size, mode=mode)[0, 0]
    return _fit(samples, length)


def _fit(samples: Tensor, length: int) -> Tensor:
    """(n,) to (length,): the middle, or silence on both sides."""
    before = (length - len(samples)) // 2  # negative where it is cropped
    return F.pad(samples, (before, length - len(samples) - before))


def _pcm(data: bytes, width: int) -> Waves:
    """Little-endian integers of `width` bytes, (n,), to numbers from -1 to 1."""
    if width == 1:  # these alone are unsigned
        return np.frombuffer(data, np.uint8).astype(np.float32) / np.float32(128) - np.float32(1)
    parts = np.frombuffer(data, np.uint8).reshape(-1, width)
    whole = np.zeros((len(parts), 4), np.uint8)
    whole[:, 4 - width :] = parts  # as the upper bytes of 32 bits, whatever the width
    return whole.view("<i4")[:, 0].astype(np.float32) / np.float32(1 << 31)


def read_all(
    files: Sequence[Path], *, sample_rate: int, length: int, progress: Progress
) -> tuple[Waves, str]:
    """All clips (n, length), mapped from the cache, and the fingerprint of their contents.

    Raises:
        FractusError: a file cannot be read, or the cache cannot be written.
    """
    try:
        hashes = content_hashes(files)
    except OSError as error:
        raise FractusError(f"cannot read {error.filename}: {error.strerror}") from None
    identity = {"format": FORMAT, "files": hashes, "sample_rate": sample_rate, "length": length}

    def make(directory: Path) -> Json:
        waves = np.lib.format.open_memmap(
            directory / "waves.npy", mode="w+", dtype=np.float32, shape=(len(files), length)
        )
        for number, file in enumerate(files):
            waves[number] = read_wave(file, sample_rate=sample_rate, length=length).numpy()
            progress(number + 1, len(files))
        waves.flush()
        return {}

    found = cached("audio", identity, make)
    waves = np.load(found.directory / "waves.npy", mmap_mode="r")
    return waves, sha256(json.dumps(identity).encode()).hexdigest()
