"""Weights in bf16 for the computation, kept in fp32 for the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call

SMALLEST = 2**14
"""Numbers in a matrix that is worth a copy."""
PIECE = 2**20
"""Numbers added at once: a sum of two precisions casts one first, and this much stays in cache."""


class HalfWeights:
    """bf16 copies of a module's large matrices, cast once for all the chunks of a step.

    (Micikevicius et al., arXiv 1710.03740, section 3.1.) Their gradients are bf16; `collect` adds
    them up in fp32.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.masters = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.dim() >= 2 and parameter.numel() >= SMALLEST
        }
        self.copies = {
            name: master.detach().bfloat16().requires_grad_()
            for name, master in self.masters.items()
        }

    @torch.no_grad()
    def refresh(self) -> None:
        """After the weights have changed."""
        for name, copy in self.copies.items():
            copy.copy_(self.masters[name])

    def __call__(self, *arguments: Any) -> Any:
        """The module's forward pass with the copies in place of their masters."""
        return functional_call(self.module, self.copies, arguments)

    @torch.no_grad()
    def collect(self) -> None:
        """Add the copies' gradients to the masters', and clear them."""
        for name, copy in self.copies.items():
            if copy.grad is None:
                continue
            master = self.masters[name]
            if master.grad is None:
                master.grad = copy.grad.float()
            else:
                rows = max(1, PIECE * len(master) // master.numel())
                for total, part in zip(master.grad.split(rows), copy.grad.split(rows), strict=True):
                    total.add_(part)
            copy.grad = None
