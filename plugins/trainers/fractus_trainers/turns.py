"""Which blocks learn in a step, where not all do."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def give_turns(blocks: Sequence[nn.Module], step: int, n_active: int) -> None:
    """Let block i of N learn where (i - step) mod N < n_active, and freeze the others.

    A frozen block passes gradients on, has none of its own, and is left alone by the optimizer.
    """
    for i, block in enumerate(blocks):
        block.requires_grad_((i - step) % len(blocks) < n_active)
