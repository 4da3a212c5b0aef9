"""The torch optimizers of any trainer."""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType, ModuleType

from torch import Tensor, nn
from torch.optim import Optimizer

NO_HOLDERS = (nn.Module, Tensor, ModuleType, FunctionType, type)
"""What has attributes, and no optimizer among them."""


def optimizers_of(holder: object) -> Iterator[Optimizer]:
    """Every torch optimizer among an object's attributes, and theirs."""
    seen: set[int] = set()

    def walk(node: object) -> Iterator[Optimizer]:
        if id(node) in seen or isinstance(node, NO_HOLDERS):
            return
        seen.add(id(node))
        if isinstance(node, Optimizer):
            yield node
            return
        if hasattr(node, "__dict__"):
            node = vars(node)
        if isinstance(node, dict | list | tuple):
            for item in node.values() if isinstance(node, dict) else node:
                yield from walk(item)

    yield from walk(holder)
