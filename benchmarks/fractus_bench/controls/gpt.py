"""A plain GPT on characters, with the sizes that are customary for a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_bench.controls.transformer import TransformerBlock

BLOCK, BATCH, D_MODEL, HEADS = 64, 12, 128, 4
"""Context, windows in a batch, width, heads: nanoGPT's recipe for tiny Shakespeare on a CPU."""


class GPT(nn.Module):
    def __init__(self, n_vocab: int, *, n_layers: int, d_model: int = D_MODEL) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.empty(n_vocab, d_model).normal_(std=0.02))
        self.positions = nn.Parameter(torch.empty(BLOCK, d_model).normal_(std=0.02))
        self.blocks = nn.Sequential(
            *(
                TransformerBlock(d_model, HEADS, n_layers=n_layers, causal=True)
                for _ in range(n_layers)
            )
        )
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T) to logits (B, T, V); the head is the embedding."""
        h = F.embedding(tokens, self.tokens) + self.positions[: tokens.shape[1]]
        return F.linear(self.norm(self.blocks(h)), self.tokens)


def random_windows(tokens: Tensor, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of windows from anywhere in tokens (T,), and of the tokens that follow."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(len(tokens) - BLOCK, (BATCH, 1), generator=draw)
        at = start + torch.arange(BLOCK)
        yield tokens[at], tokens[at + 1]


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, tokens: Tensor, *, stride: int) -> float:
    """Nats per token over all of tokens (T,), T > BLOCK, each but the first predicted once.

    Windows begin `stride` apart, and what two of them have in common is scored in the first. With a
    stride of BLOCK they have nothing in common; with a smaller one a token has at least
    BLOCK - stride others before it, once there are so many.
    """
    x, y = tokens[:-1], tokens[1:]

    def nats(inputs: Tensor, targets: Tensor, last: int) -> float:
        each = F.cross_entropy(model(inputs).mT, targets, reduction="none")
        return float(each[:, -last:].sum())

    total = nats(x[None, :BLOCK], y[None, :BLOCK], BLOCK)
    windows, answers = x.unfold(0, BLOCK, stride)[1:], y.unfold(0, BLOCK, stride)[1:]
    for inputs, targets in zip(windows.split(64), answers.split(64), strict=True):
        total += nats(inputs, targets, stride)
    if rest := len(x) - BLOCK - stride * len(windows):
        total += nats(x[None, -BLOCK:], y[None, -BLOCK:], rest)
    return total / len(x)
