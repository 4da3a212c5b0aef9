"""A plain convolutional network for small images."""

from __future__ import annotations

from torch import Tensor, nn


class CNN(nn.Module):
    """Four convolutions of 3 x 3, the image halved after each of the first three."""

    def __init__(self, n_classes: int, *, width: int) -> None:
        super().__init__()
        w = width
        self.layers = nn.Sequential(
            *_convolution(3, w),
            nn.MaxPool2d(2),
            *_convolution(w, 2 * w),
            nn.MaxPool2d(2),
            *_convolution(2 * w, 4 * w),
            nn.MaxPool2d(2),
            *_convolution(4 * w, 4 * w),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(4 * w, n_classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 to logits (B, classes)."""
        logits: Tensor = self.layers((images.float() - 127.5) / 64)
        return logits


def _convolution(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )
