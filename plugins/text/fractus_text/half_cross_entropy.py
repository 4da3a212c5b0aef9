"""Cross entropy of a linear head in bf16, without all logits at once.

torch's own `linear_cross_entropy` gives a loss of three digits when its inputs are bf16, or takes
the gradients in fp32 at half the speed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fractus_text.logits import rows_at_once


class _HalfCrossEntropy(torch.autograd.Function):
    """The gradients are made with the loss, and only scaled in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, learning: bool
    ) -> Tensor:
        rows = rows_at_once(len(weight))
        loss = hidden.new_zeros((), dtype=torch.float32)
        scaled = hidden / len(hidden)
        hidden_gradient, weight_gradient = torch.empty_like(hidden), None
        for begin in range(0, len(hidden), rows):
            here = slice(begin, begin + rows)
            logits = hidden[here] @ weight.T
            # Normalised in fp32, kept in bf16: the errors of many rows cancel in the mean.
            likely = torch.softmax(logits, dim=-1, out=logits)
            right = targets[here].unsqueeze(-1)
            loss -= likely.gather(-1, right).float().log().sum()
            if not learning:
                continue
            likely.scatter_add_(-1, right, likely.new_full((), -1.0).expand(right.shape))
            torch.mm(likely, weight, out=hidden_gradient[here])
            if weight_gradient is None:
                weight_gradient = likely.T @ scaled[here]
            else:
                weight_gradient.addmm_(likely.T, scaled[here])
        ctx.gradients = hidden_gradient.div_(len(hidden)), weight_gradient
        return loss / len(hidden)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, Tensor, None, None]:
        hidden_gradient, weight_gradient = ctx.gradients
        del ctx.gradients
        return hidden_gradient.mul_(upstream), weight_gradient.mul_(upstream), None, None


def half_cross_entropy(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The mean loss in nats, a scalar in fp32, of hidden (M, d_model) and weight (V, d_model).

    Both bf16; targets (M,). Differentiable once.
    """
    learning = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss: Tensor = _HalfCrossEntropy.apply(hidden, weight, targets, learning)
    return loss
