"""A plain vision transformer for images of 32 x 32 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fractus_bench.controls.transformer import TransformerBlock

PATCH, HEADS, LAYERS = 4, 4, 3
_SIDE = 32


class ViT(nn.Module):
    """Patches of 4 x 4 and a mean over them (Beyer et al., arXiv 2205.01580, but small)."""

    def __init__(self, n_classes: int, *, d_model: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, d_model, PATCH, stride=PATCH)
        n = (_SIDE // PATCH) ** 2
        self.positions = nn.Parameter(torch.empty(n, d_model).normal_(std=0.02))
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(d_model, HEADS, n_layers=LAYERS, causal=False)
                for _ in range(LAYERS)
            )
        )
        self.norm = nn.LayerNorm(d_model)
        self.head = nn.Linear(d_model, n_classes)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, 32, 32) uint8 to logits (B, classes)."""
        x = self.patches((images.float() - 127.5) / 64).flatten(2).transpose(1, 2)
        logits: Tensor = self.head(self.norm(self.blocks(x + self.positions)).mean(1))
        return logits
