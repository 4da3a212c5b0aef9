"""Images to a square grid of vectors."""

from __future__ import annotations

from torch import Tensor, nn

from fractus_core.api import FractusError

CONV_SIDE = 4
"""The grid that the convolutional stem ends in."""
_WIDTH = 64


class PatchStem(nn.Module):
    """One linear map of each patch (Dosovitskiy et al., arXiv 2010.11929)."""

    def __init__(self, d_model: int, channels: int, *, size: int, patch_size: int) -> None:
        """Raises `FractusError` if patches do not fill the image."""
        super().__init__()
        if size % patch_size:
            raise FractusError(
                f"size {size} is no multiple of patch_size {patch_size}: change either"
            )
        self.side = size // patch_size
        self.project = nn.Conv2d(channels, d_model, patch_size, stride=patch_size)

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, size, size) to (B, d_model, side, side)."""
        grid: Tensor = self.project(images)
        return grid


class ConvStem(nn.Module):
    """A few convolutions, each of which sees more of the image in fewer places."""

    side = CONV_SIDE

    def __init__(self, d_model: int, channels: int) -> None:
        super().__init__()
        # Pooled before it is normalised: the same to the maximum, and a quarter of the work.
        self.layers = nn.Sequential(
            nn.Conv2d(channels, _WIDTH, 6, stride=2, padding=2, bias=False),
            nn.MaxPool2d(2),
            nn.BatchNorm2d(_WIDTH),
            nn.ReLU(),
            nn.Conv2d(_WIDTH, d_model, 3, padding=1, bias=False),
            nn.AdaptiveMaxPool2d(CONV_SIDE),
            nn.BatchNorm2d(d_model),
            nn.ReLU(),
            nn.Conv2d(d_model, d_model, 3, padding=1, bias=False),
            nn.BatchNorm2d(d_model),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(B, channels, size, size) to (B, d_model, side, side)."""
        grid: Tensor = self.layers(images)
        return grid
