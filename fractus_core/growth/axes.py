"""How one dimension of a tensor grows: what becomes of weights, and of their gradients.

Two duals keep a function. Where something is *written* many times, readers must *split* its weight
among the copies: `w x = w1 x + w2 x` if `w1 + w2 = w` (Net2Net, arXiv 1511.05641). The gradient of
what is written is split then, and that of its readers is copied. Splits are unequal, or copies
would receive the same gradients and stay copies for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Axis(Protocol):
    def values(self, t: Tensor, draw: torch.Generator) -> Tensor:
        """The larger weights."""

    def gradients(self, t: Tensor, power: int) -> Tensor:
        """What an optimizer averages: gradients to the power of 1 or 2. Zero where all is new."""


@dataclass(frozen=True, slots=True)
class Copies:
    """How n indices become more: each new one is a copy of an old one, or is spare."""

    source: Tensor
    """(copies,) int64: the old index of each."""
    spare: int = 0
    """Indices after these, which copy nothing."""

    def sums(self, t: Tensor, dim: int) -> Tensor:
        """The sum over all copies of the same index, for each copy."""
        zeros = t.new_zeros([*t.shape[:dim], int(self.source.max()) + 1, *t.shape[dim + 1 :]])
        return zeros.index_add(dim, self.source, t).index_select(dim, self.source)

    def shares(self, shape: Sequence[int], dim: int, draw: torch.Generator) -> Tensor:
        """Positive and unequal; those of all copies of one index sum to 1."""
        raw = torch.rand(shape, generator=draw) + 0.5
        return raw / self.sums(raw, dim)

    def repeat(self, t: Tensor, dim: int, spare: Tensor | None = None) -> Tensor:
        """Each copy as its source; the spare ones as `spare`, of size 1 along `dim`, or zero."""
        return self.filled(t.index_select(dim, self.source), dim, spare)

    def filled(self, t: Tensor, dim: int, spare: Tensor | None = None) -> Tensor:
        """`t`, which has all copies, with the spare ones behind them."""
        if not self.spare:
            return t
        spare = torch.zeros_like(t.narrow(dim, 0, 1)) if spare is None else spare
        return torch.cat([t, spare.repeat_interleave(self.spare, dim)], dim)


@dataclass(frozen=True, slots=True)
class Copied:
    """Written as often as there are copies. Spare ones are the mean of all, or zero."""

    dim: int
    copies: Copies
    mean: bool = True

    def values(self, t: Tensor, draw: torch.Generator) -> Tensor:
        spare = t.mean(self.dim, keepdim=True) if self.mean else None
        return self.copies.repeat(t, self.dim, spare)

    def gradients(self, t: Tensor, power: int) -> Tensor:
        count = self.copies.sums(torch.ones(len(self.copies.source)), 0)
        count = count.view([-1 if d == self.dim else 1 for d in range(t.dim())])
        each = t.index_select(self.dim, self.copies.source) / count**power
        return self.copies.filled(each, self.dim)


@dataclass(frozen=True, slots=True)
class Weakened(Copied):
    """Copied, and to be weakened then, so that all copies of one are what it was: a split."""

    def gradients(self, t: Tensor, power: int) -> Tensor:
        return self.copies.repeat(t, self.dim)


@dataclass(frozen=True, slots=True)
class Split:
    """Reads copies. Spare ones are read too, if they are known to be zero."""

    dim: int
    copies: Copies
    read_spare: bool = False

    def values(self, t: Tensor, draw: torch.Generator) -> Tensor:
        each = t.index_select(self.dim, self.copies.source)
        each = each * self.copies.shares(each.shape, self.dim, draw)
        if not self.copies.spare or not self.read_spare:
            return self.copies.filled(each, self.dim)
        shape = list(each.shape)
        shape[self.dim] = self.copies.spare
        return torch.cat([each, _noise(shape, t, draw)], self.dim)

    def gradients(self, t: Tensor, power: int) -> Tensor:
        return self.copies.repeat(t, self.dim)


@dataclass(frozen=True, slots=True)
class Paired:
    """New indices, two of which do the same and cancel: one incoming weight, and outgoing weights
    of opposite signs. Nothing changes, and all of them receive gradients.

    An odd one at the end has no outgoing weight.
    """

    dim: int
    count: int
    outgoing: bool

    def values(self, t: Tensor, draw: torch.Generator) -> Tensor:
        shape = list(t.shape)
        shape[self.dim] = (self.count + 1) // 2
        new = _noise(shape, t, draw).repeat_interleave(2, self.dim)
        if self.outgoing:
            signs = torch.tensor([1.0, -1.0]).repeat(shape[self.dim])
            if self.count % 2:
                signs[-2] = 0.0
            new = new * signs.view([-1 if d == self.dim else 1 for d in range(t.dim())])
        return torch.cat([t, new.narrow(self.dim, 0, self.count)], self.dim)

    def gradients(self, t: Tensor, power: int) -> Tensor:
        shape = list(t.shape)
        shape[self.dim] = self.count
        return torch.cat([t, t.new_zeros(shape)], self.dim)


def _noise(shape: Sequence[int], like: Tensor, draw: torch.Generator) -> Tensor:
    """As large as the weights that are there already."""
    return torch.randn(shape, generator=draw) * like.square().mean().sqrt()
