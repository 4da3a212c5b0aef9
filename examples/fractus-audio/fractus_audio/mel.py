"""The log-mel spectrogram: how loud a sound is in each band of pitch, a hundred times a second."""

from __future__ import annotations

import torch
from torch import Tensor

from fractus_core.api import FractusError

FRAMES_PER_SECOND = 100
_WINDOW_SECONDS = 0.025
_RANGE_DB = 80.0
"""What is so much below the loudest of its clip is silence."""


class LogMel:
    """Waves (B, samples) to decibels (B, frames, mels), scaled to -1 to 1.

    They are relative to the loudest band and frame of the clip, so how loud it was recorded does
    not matter.
    """

    def __init__(self, sample_rate: int, mels: int) -> None:
        """Raises `FractusError` if the bands are narrower than the spectrum's lines."""
        self.hop = sample_rate // FRAMES_PER_SECOND
        length = round(sample_rate * _WINDOW_SECONDS)
        self.n_fft = 1 << length.bit_length()  # up to twice the window: finer lines
        self.window = torch.hann_window(length)
        self.filters = mel_filters(sample_rate, n_fft=self.n_fft, mels=mels)

    def frames(self, samples: int) -> int:
        return samples // self.hop + 1

    def __call__(self, waves: Tensor) -> Tensor:
        spectrum = torch.stft(
            waves,
            self.n_fft,
            self.hop,
            len(self.window),
            self.window,
            pad_mode="constant",
            return_complex=True,
        )
        power = spectrum.abs().square().transpose(1, 2) @ self.filters
        level = 10 * power.clamp(min=1e-12).log10()
        level = level - level.amax((1, 2), keepdim=True)
        return (level / (_RANGE_DB / 2) + 1).clamp(min=-1)


def mel_filters(sample_rate: int, *, n_fft: int, mels: int) -> Tensor:
    """Triangles (n_fft / 2 + 1, mels), evenly spaced in mel, each reaching its neighbours' peaks.

    The mel scale of pitch is due to Stevens, Volkmann and Newman (J. Acoust. Soc. Am. 8, 185,
    1937), here in the form of the HTK book: mel(f) = 2595 log10(1 + f / 700 Hz).
    """
    nyquist = torch.tensor(sample_rate / 2, dtype=torch.float64)
    top = 2595 * torch.log10(1 + nyquist / 700)
    corners = 700 * (10 ** (torch.linspace(0, 1, mels + 2, dtype=torch.float64) * top / 2595) - 1)
    lines = torch.linspace(0, 1, n_fft // 2 + 1, dtype=torch.float64)[:, None] * nyquist
    low, peak, high = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (lines - low) / (peak - low), (high - lines) / (high - peak)
    filters = torch.minimum(rising, falling).clamp(min=0)
    if not filters.any(0).all():
        raise FractusError(
            f"{mels} mels are too many at {sample_rate} samples a second: lower mels"
        )
    return filters.float()
