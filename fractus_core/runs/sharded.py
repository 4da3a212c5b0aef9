"""Tensors of which each rank of a run has a part (torch's `DTensor`), made whole and parted again.

A checkpoint has whole ones: any command reads it, and so does any number of ranks. torch's own
distributed checkpoints are pickled in part, which Fractus never reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fractus_core.runs import ranks


def is_sharded(x: Any) -> bool:
    """False wherever there is but one rank, without importing what `DTensor` needs."""
    if ranks.world() == 1:
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(x, DTensor)


@torch.no_grad()
def whole(x: Tensor) -> Tensor:
    """All of x, on every rank; each must ask for it. What is not sharded is whole."""
    if not is_sharded(x):
        return x
    full: Tensor = x.full_tensor()  # type: ignore[attr-defined]
    return full


@torch.no_grad()
def part(x: Tensor, like: Tensor) -> Tensor:
    """x, whole and the same on all ranks, sharded as `like` is. Nothing is sent."""
    if not is_sharded(like) or is_sharded(x):
        return x
    from torch.distributed.tensor import distribute_tensor

    mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
    return distribute_tensor(x.to(like.device), mesh, placements, src_data_rank=None)


def whole_tree(tree: Any) -> Any:
    """Nested dicts and lists with their sharded tensors whole; those on rank 0 alone, on its
    processor, and nothing on the others."""
    if isinstance(tree, Mapping):
        return {key: whole_tree(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [whole_tree(value) for value in tree]
    if not is_sharded(tree):
        return tree
    full = whole(tree)
    return full.cpu() if ranks.is_first() else None


def part_tree(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of a module's `state_dict()`, each tensor as the one of the same name in `like` is."""
    return {
        name: part(value, like[name]) if name in like else value for name, value in values.items()
    }
