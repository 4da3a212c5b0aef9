"""How what a lane has learnt since it last took the brain's weights goes into them.

Every rule moves the brain's weights by a part of the lane's difference, `own - base`. With n lanes
that are averaged each gives 1/n of its own, whenever it comes, so that after a round of exchanges
from one base the brain is at the mean of them; differences that are added are given whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Weights = Mapping[str, Tensor]
"""A module's state, by name."""

OUTER_LR, OUTER_MOMENTUM = 0.7, 0.9
"""Of the outer optimizer (Douillard et al., DiLoCo, arXiv 2311.08105)."""


def moved(brain: Weights, base: Weights, own: Weights, part: float) -> dict[str, Tensor]:
    """`brain + part * (own - base)`; what is no floating-point number is the lane's."""
    return {
        name: value + part * (own[name] - base[name])
        if value.is_floating_point()
        else own[name].clone()
        for name, value in brain.items()
    }


class Nesterov:
    """Nesterov's momentum over the differences of n lanes that come one by one.

    Each is applied as it comes, 1/n of it; the momentum is updated and applied once in n of them
    (delayed Nesterov, Liu et al., arXiv 2401.09135), which for one lane, or for n that come at the
    same time, is DiLoCo's outer step.
    """

    def __init__(self, state: Mapping[str, Any] | None) -> None:
        """`state` is what `state_dict` gave; None before the first difference."""
        self._momentum: dict[str, Tensor] = dict(state["momentum"]) if state else {}
        self._pending: dict[str, Tensor] = dict(state["pending"]) if state else {}
        self._count: int = state["count"] if state else 0

    def moved(self, brain: Weights, base: Weights, own: Weights, n: int) -> dict[str, Tensor]:
        self._count += 1
        complete = self._count >= n
        result = {}
        for name, value in brain.items():
            if not value.is_floating_point():
                result[name] = own[name].clone()
                continue
            difference = own[name] - base[name]
            pending = self._pending.get(name, torch.zeros_like(value)) + difference
            step = difference / n
            if complete:
                momentum = self._momentum.get(name, torch.zeros_like(value))
                momentum = OUTER_MOMENTUM * momentum + pending / self._count
                step = step + OUTER_MOMENTUM * momentum
                self._momentum[name], pending = momentum, torch.zeros_like(value)
            self._pending[name] = pending
            result[name] = value + OUTER_LR * step
        if complete:
            self._count = 0
        return result

    def state_dict(self) -> dict[str, Any]:
        return {"momentum": self._momentum, "pending": self._pending, "count": self._count}


def distance(own: Weights, other: Weights) -> float:
    """|own - other| / |other|, over all floating-point numbers."""
    names = [name for name, value in other.items() if value.is_floating_point()]
    apart = sum(float((own[name] - other[name]).double().square().sum()) for name in names)
    size = sum(float(other[name].double().square().sum()) for name in names)
    return (apart / size) ** 0.5 if size else 0.0
