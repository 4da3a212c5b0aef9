"""How tokens reach their experts: three layouts of token copies, each with its product.

A copy is one token at one of the K experts that it visits: M = T K of them. All layouts give the
same results; which is the least work depends on M, E, how even the choices are, and the device.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 3
"""Padded segments may be so many times as long as what is in them."""


class Layout(Protocol):
    """`...` stands for the layout's own shape of token copies."""

    def spread(self, x: Tensor) -> Tensor:
        """Tokens x (T, n) to copies (..., n)."""

    def mm(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Each copy's x (..., a) times its expert's matrix, of weight (E, a, b), plus its bias, of
        (E, b). In the precision of autocast."""

    def of(self, table: Tensor) -> Tensor:
        """Each copy's expert's row of a table (E, n), for broadcasting to (..., n)."""

    def combine(self, y: Tensor, weights: Tensor) -> Tensor:
        """Copies y (..., n) to their tokens' sums (T, n), weighted by weights (T, K)."""


def layout(chosen: Tensor, n_experts: int) -> Layout:
    """The one that fits, for chosen (T, K), each token's experts."""
    T, M = len(chosen), chosen.numel()
    on_cpu = chosen.device.type == "cpu"
    # A program may look at how many are chosen, not at which.
    compiling = on_cpu and torch.compiler.is_compiling()
    if n_experts >= M or (compiling and n_experts * T > PADDING * M):
        return Gathered(chosen)  # ticks: the weights of so few are fewer than all
    flat = chosen.flatten()
    # Not bincount, which waits for a GPU to tell the largest.
    counts = flat.new_zeros(n_experts).scatter_add_(0, flat, torch.ones_like(flat))
    if on_cpu:
        longest = T if compiling else int(counts.max())
        if longest * n_experts <= PADDING * M:
            return Padded(chosen, counts, longest)
    return Grouped(chosen, counts)


class Gathered:
    """Copies (M,), and a matrix gathered for each."""

    def __init__(self, chosen: Tensor) -> None:
        self.expert = chosen.flatten()
        self.top_k = chosen.shape[1]

    def spread(self, x: Tensor) -> Tensor:
        return x.repeat_interleave(self.top_k, 0)

    def mm(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = compute_dtype(x)
        y = torch.bmm(x.to(dtype).unsqueeze(1), weight[self.expert].to(dtype)).squeeze(1)
        return y if bias is None else y + self.of(bias).to(dtype)

    def of(self, table: Tensor) -> Tensor:
        return rows(table, self.expert)

    def combine(self, y: Tensor, weights: Tensor) -> Tensor:
        each: Tensor = y.view(*weights.shape, -1) * weights.unsqueeze(-1).to(y.dtype)
        return each.sum(1)


class Grouped:
    """Copies (M,) sorted by expert, for products of segments."""

    def __init__(self, chosen: Tensor, counts: Tensor) -> None:
        flat = chosen.flatten()
        self.order = flat.argsort(stable=True)
        self.token = self.order // chosen.shape[1]
        self.expert = flat[self.order]
        self.ends = counts.cumsum(0).to(torch.int32)

    def spread(self, x: Tensor) -> Tensor:
        return rows(x, self.token)

    def mm(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = compute_dtype(x)
        y = F.grouped_mm(x.to(dtype), weight.to(dtype), offs=self.ends)
        return y if bias is None else y + self.of(bias).to(dtype)

    def of(self, table: Tensor) -> Tensor:
        return rows(table, self.expert)

    def combine(self, y: Tensor, weights: Tensor) -> Tensor:
        y = y * weights.flatten()[self.order].unsqueeze(-1).to(y.dtype)
        total = y.new_zeros(len(weights), y.shape[-1])
        return total.index_add(0, self.token, y)


class Padded:
    """Copies (E, longest), for one batched product: twice as fast as segments on a CPU.

    What fills the gaps is some token, computed in vain: nothing of it is used.
    """

    def __init__(self, chosen: Tensor, counts: Tensor, longest: int) -> None:
        flat, E = chosen.flatten(), len(counts)
        order = flat.argsort(stable=True)
        expert = flat[order]
        before = counts.cumsum(0) - counts
        slot = (longest * expert - before[expert]) + torch.arange(len(flat), device=flat.device)
        self.shape = (E, longest)
        self.slot = torch.empty_like(flat).index_copy_(0, order, slot).view(chosen.shape)
        token = order // chosen.shape[1]
        self.token = flat.new_zeros(E * longest).index_copy_(0, slot, token)

    def spread(self, x: Tensor) -> Tensor:
        return rows(x, self.token).view(*self.shape, -1)

    def mm(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        dtype = compute_dtype(x)
        x, weight = x.to(dtype), weight.to(dtype)
        if bias is None:
            return torch.bmm(x, weight)
        return torch.baddbmm(self.of(bias).to(dtype), x, weight)

    def of(self, table: Tensor) -> Tensor:
        return table.unsqueeze(1)

    def combine(self, y: Tensor, weights: Tensor) -> Tensor:
        return F.embedding_bag(
            self.slot, y.flatten(0, 1), per_sample_weights=weights.to(y.dtype), mode="sum"
        )


def compute_dtype(x: Tensor) -> torch.dtype:
    """Of autocast, where it is on, or of x."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


def rows(table: Tensor, index: Tensor) -> Tensor:
    """table[index] for a table (R, n) and an index (M,), with a backward several times faster."""
    return F.embedding(index, table)
