"""Muon: momentum, orthogonalised (Jordan et al., https://kellerjordan.github.io/posts/muon/).

torch has one for single matrices. This also takes stacks of them, as experts are, and convolutions,
and orthogonalises all that have one shape in a single batched product.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fractus_core.api import sharded

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Of the quintic; after five iterations all singular values are near 1."""
ITERATIONS = 5
EPS = 1e-7
RMS = 0.2
"""Root mean square of an update, in learning rates: AdamW's, so that one rate suits both (Liu et
al., arXiv 2502.16982)."""


class Muon(Optimizer):
    """Groups have `lr`, `weight_decay` (decoupled), `momentum` (Nesterov's), and `flatten`: whether
    a parameter (a, ...) is one matrix of a rows, as a convolution is. Otherwise (a, b) is a matrix
    and (n, a, b) a stack of n.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        flatten: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "flatten": flatten,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            directions = self._directions(parameters, group["momentum"])
            # Of sharded ones each rank makes all, of which it keeps its part: a matrix is made
            # orthogonal as a whole, and to send it costs no less.
            wholes = [sharded.whole(d) for d in directions]
            matrices = [_as_matrices(d, flatten=group["flatten"]) for d in wholes]
            lr, shrink = group["lr"], 1 - group["lr"] * group["weight_decay"]
            torch._foreach_mul_(parameters, shrink)
            for parameter, update in zip(parameters, orthogonalised(matrices), strict=True):
                scale = RMS * max(update.shape[-2:]) ** 0.5
                step = sharded.part(update.view(parameter.shape), like=parameter)
                parameter.add_(step, alpha=-lr * scale)

    def _directions(self, parameters: list[Tensor], momentum: float) -> tuple[Tensor, ...]:
        gradients = [p.grad for p in parameters if p.grad is not None]
        buffers = []
        for parameter, gradient in zip(parameters, gradients, strict=True):
            state = self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            buffers.append(state["momentum_buffer"])
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        return torch._foreach_lerp(gradients, buffers, momentum)


def _as_matrices(x: Tensor, *, flatten: bool) -> Tensor:
    """(n, a, b)."""
    if flatten:
        return x.reshape(1, x.shape[0], -1)
    return x.unsqueeze(0) if x.dim() == 2 else x


def orthogonalised(matrices: list[Tensor]) -> list[Tensor]:
    """For each (n, a, b), the nearest matrices with singular values near 1, in fp32."""
    batches: dict[tuple[int, int], list[int]] = {}
    for i, x in enumerate(matrices):
        batches.setdefault((min(x.shape[-2:]), max(x.shape[-2:])), []).append(i)
    result = list(matrices)
    for members in batches.values():
        wide = [_wide(matrices[i]) for i in members]
        done = newton_schulz(torch.cat(wide)).split([len(x) for x in wide])
        for i, x in zip(members, done, strict=True):
            tall = matrices[i].shape[-2] > matrices[i].shape[-1]
            result[i] = (x.mT if tall else x).float().contiguous()
    return result


def _wide(x: Tensor) -> Tensor:
    return x.mT if x.shape[-2] > x.shape[-1] else x


def newton_schulz(x: Tensor) -> Tensor:
    """(n, a, b), a at most b, to the same in bf16, each made orthogonal."""
    a, b, c = NEWTON_SCHULZ
    x = x.bfloat16()
    x = x / torch.linalg.matrix_norm(x, keepdim=True).clamp(min=EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x
