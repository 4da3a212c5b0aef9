"""Changes to training images that leave their class alone, decided by the image's own draws."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchvision.transforms.v2.functional import pad

from fractus_vision.draws import UInt64

DRAWS = 1
"""Raw draws that decide what happens to an image."""


@dataclass(frozen=True, slots=True)
class Augmentation:
    mirror: bool
    """Half of the images."""
    shift: int
    """Most pixels, in both directions; what comes in is mirrored at the edge."""

    def __call__(self, images: Tensor, raw: UInt64) -> Tensor:
        """Images (B, channels, H, W), and draws (B, DRAWS) for each."""
        bits = torch.from_numpy((raw[:, 0] >> 1).astype("int64"))
        if self.mirror:
            images = torch.where((bits & 1).bool().view(-1, 1, 1, 1), images.flip(-1), images)
        if self.shift:
            way = 2 * self.shift + 1
            images = _windows(images, self.shift, bits // 2 % way, bits // 2 // way % way)
        return images


def _windows(images: Tensor, margin: int, top: Tensor, left: Tensor) -> Tensor:
    """From each image, grown by a margin, a window of its own size at (top, left), (B,) each."""
    B, _, H, W = images.shape
    grown: Tensor = pad(images, [margin], padding_mode="reflect")
    rows = (top[:, None] + torch.arange(H))[:, :, None]
    columns = (left[:, None] + torch.arange(W))[:, None, :]
    row = torch.arange(B)[:, None, None]
    return grown.permute(0, 2, 3, 1)[row, rows, columns].permute(0, 3, 1, 2)
