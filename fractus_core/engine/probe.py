"""How alive the routing is: expert hits, their entropy, dead experts, the order parameter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fractus_core.engine.config import EngineConfig
from fractus_core.engine.kuramoto import order_parameter

DEAD = 0.1
"""An expert is dead that gets less than this part of its fair share."""


def collapse_ceiling(config: EngineConfig) -> float:
    """The lb, summed over blocks, of a router that ignores its input: I0(2k) / I0(k)^2 - 1 each.

    k = kappa / T, I0 the modified Bessel function. An lb near it means that the router is blind and
    the loss has no gradient left to give.
    """
    k = torch.tensor(config.gate_sharpness, dtype=torch.float64)
    # i0e(x) = exp(-x) I0(x): the exponentials cancel, so that a sharp gate does not overflow.
    ratio = torch.special.i0e(2 * k) / torch.special.i0e(k).square()
    return config.n_layers * (float(ratio) - 1)


@dataclass(slots=True)
class RoutingProbe:
    """Given to an engine's call, it counts what the routers did; the call itself is unchanged."""

    config: EngineConfig
    _hits: list[Tensor] = field(default_factory=list)
    _order: list[float] = field(default_factory=list)
    _lb: float = 0.0
    _ticks: int = 0
    _block: int = 0

    def add(self, theta: Tensor, chosen: Tensor, lb: Tensor) -> None:
        """One block's phases (B, C, N), chosen experts (B, C, K) and lb; blocks come in order."""
        if not self._hits:
            E, blocks = self.config.n_experts, self.config.n_layers
            self._hits = [torch.zeros(E, dtype=torch.int64) for _ in range(blocks)]
            self._order = [0.0] * blocks
        b, ticks = self._block, theta.shape[1]
        self._hits[b] += torch.bincount(chosen.flatten(), minlength=self.config.n_experts).cpu()
        self._order[b] += order_parameter(theta.detach()).mean().item() * ticks
        self._lb += lb.item() * ticks
        self._block = (b + 1) % self.config.n_layers
        if self._block == 0:
            self._ticks += ticks

    def report(self) -> dict[str, Any]:
        """Means over all ticks: `lb`, `lb_ceiling_ratio`, and a list over blocks in `blocks`.

        Each block has `hits` (E counts), `entropy` (of the hits, 1 is even), `dead` (experts) and
        `order_parameter`.
        """
        lb = self._lb / self._ticks
        blocks = [
            {
                "hits": hits.tolist(),
                "entropy": normalised_entropy(hits),
                "dead": int((hits < DEAD * hits.sum() / len(hits)).sum()),
                "order_parameter": order / self._ticks,
            }
            for hits, order in zip(self._hits, self._order, strict=True)
        ]
        return {"lb": lb, "lb_ceiling_ratio": lb / collapse_ceiling(self.config), "blocks": blocks}


def normalised_entropy(hits: Tensor) -> float:
    """Entropy of a histogram divided by its maximum, ln(length)."""
    if len(hits) == 1:
        return 1.0
    p = hits.double() / hits.sum()
    return -float(torch.special.xlogy(p, p).sum()) / math.log(len(hits))
