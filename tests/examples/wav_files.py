"""Wav files and folders of them, made with the standard library."""

from __future__ import annotations

import math
import wave
from collections.abc import Mapping, Sequence
from pathlib import Path

RATE = 8000
PITCH = {"low": 300.0, "high": 1500.0}
SECONDS = 0.2


def tone(
    frequency: float, *, rate: int = RATE, seconds: float = SECONDS, phase: float = 0.0
) -> list[float]:
    turns = [2 * math.pi * frequency * n / rate + phase for n in range(round(rate * seconds))]
    return [0.5 * math.sin(turn) for turn in turns]


def write_wav(file: Path, *channels: Sequence[float], rate: int = RATE, width: int = 2) -> Path:
    """PCM of `width` bytes; each channel's samples are from -1 to 1."""
    file.parent.mkdir(parents=True, exist_ok=True)
    full = 1 << (8 * width - 1)
    with wave.open(str(file), "wb") as out:
        out.setnchannels(len(channels))
        out.setsampwidth(width)
        out.setframerate(rate)
        for frame in zip(*channels, strict=True):
            for sample in frame:
                value = max(-full, min(full - 1, round(sample * full)))
                data = (
                    bytes([value + 128])  # 8 bits are unsigned
                    if width == 1
                    else value.to_bytes(width, "little", signed=True)
                )
                out.writeframesraw(data)
    return file


def write_folders(root: Path, *, clips: int = 6, pitch: Mapping[str, float] = PITCH) -> Path:
    """A folder for each class, with tones of one pitch and of differing phase in it."""
    for name, frequency in pitch.items():
        for number in range(clips):
            write_wav(root / name / f"{number}.wav", tone(frequency, phase=number))
    return root


def write_table(root: Path, *, clips: int = 6) -> Path:
    """The same with a labels.csv; the last clip of each class is held out."""
    lines = ["file,label,speaker,split"]
    for name, frequency in PITCH.items():
        for number in range(clips):
            file = write_wav(root / "clips" / f"{name}{number}.wav", tone(frequency, phase=number))
            split = "test" if number == clips - 1 else "train"
            lines.append(f"clips/{file.name},{name},me,{split}")
    (root / "labels.csv").write_text("\n".join([*lines, ""]))
    return root
