"""Memory that a piece of work would take, from working it with tensors that have none."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MANY = 10**9
"""What a number reads as that only values could tell."""


class Ledger(TorchDispatchMode):
    """Keeps account of what every operation allocates, and of when that is freed again."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = 0
        """That are allocated now."""
        self.peak = 0
        """The most that were, since `mark`."""
        self._known: set[int] = set()

    def mark(self) -> None:
        self.peak = self.bytes

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return MANY
        if func is torch.ops.aten._fused_sgd_.default:  # in place, and really computed if called
            return None
        if func is torch.ops.aten._grouped_mm.default and args[0].dtype is torch.float32:
            # Which torch computes, but of which it knows the shape in bf16 only.
            a, b, *rest = args
            result = func(a.bfloat16(), b.bfloat16(), *rest, **(kwargs or {})).float()
        else:
            result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not leaf.is_sparse:
                self._add(leaf.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._known:
            return
        self._known.add(key)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)
        weakref.finalize(storage, self._free, key, size).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size


@contextmanager
def pretending() -> Iterator[Ledger]:
    """Tensors that are made meanwhile have shapes and no contents."""
    with FakeTensorMode(allow_non_fake_inputs=True), Ledger() as ledger:
        yield ledger
