"""Weights in bf16 for the computation, kept in fp32 for the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

SMALLEST = 2**14
"""Numbers in a matrix that is worth a copy."""
PIECE = 2**20
"""Numbers added at once: a sum of two precisions casts one first, and this much stays in cache."""


class HalfWeights:
    """bf16 copies of a module's large matrices, cast once for all the chunks of a step.

    Not of parts that say `full_precision`.

    (Micikevicius et al., arXiv 1710.03740, section 3.1.) Each gradient is bf16 only until it is
    complete: it is then added to the master's in fp32, so that never more than one is there.
    A copy's `master` is for lookups, which gain nothing from lower precision.
    """

    def __init__(self, module: nn.Module) -> None:
        kept = {
            parameter
            for part in module.modules()
            if getattr(part, "full_precision", False)
            for parameter in part.parameters()
        }
        self.copies = {
            master: nn.Parameter(master.detach().bfloat16())
            for master in module.parameters()
            if master not in kept and master.dim() >= 2 and master.numel() >= SMALLEST
        }
        self._places = [
            (owner, name, master)
            for owner in module.modules()
            for name, master in owner.named_parameters(recurse=False)
            if master in self.copies
        ]
        for master, copy in self.copies.items():
            copy.master = master  # type: ignore[attr-defined]
            copy.register_post_accumulate_grad_hook(partial(_collect, master))

    @torch.no_grad()
    def refresh(self) -> None:
        """After the weights have changed, or which of them learn."""
        for master, copy in self.copies.items():
            copy.copy_(master)
            copy.requires_grad_(master.requires_grad)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The module has the copies instead of their masters, for forward and backward passes."""
        for owner, name, master in self._places:
            setattr(owner, name, self.copies[master])
        try:
            yield
        finally:
            for owner, name, master in self._places:
                setattr(owner, name, master)


@torch.no_grad()
def _collect(master: nn.Parameter, copy: Tensor) -> None:
    """Add the copy's gradient to the master's, and clear it."""
    assert copy.grad is not None
    if master.grad is None:
        master.grad = copy.grad.float()
    else:
        rows = max(1, PIECE * len(master) // master.numel())
        for total, part in zip(master.grad.split(rows), copy.grad.split(rows), strict=True):
            total.add_(part)
    copy.grad = None
