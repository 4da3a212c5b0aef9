"""More layers: new blocks that write nothing, evenly among the old ones. Exact."""

from __future__ import annotations

import dataclasses

import torch

from fractus_core.engine import EngineState
from fractus_core.growth.growth import ENGINE, Growth, Trees, in_block

OUTPUTS = (
    "attention.out_proj.weight",
    "attention.out_proj.bias",
    "experts.experts.U2",
    "experts.experts.W2",
    "experts.experts.b2",
)
"""What a block adds to the residual stream passes through these: zero, it is the identity, and
still they receive gradients."""


class Depth(Growth):
    @property
    def old_blocks(self) -> list[int | None]:
        """Of each new block, the old one that it is; None where it is new."""
        L, old = self.new.n_layers, self.old.n_layers
        groups = [block * old // L for block in range(L)]
        return [
            group if block == 0 or groups[block - 1] != group else None
            for block, group in enumerate(groups)
        ]

    def weights(self, trees: Trees) -> Trees:
        grown = self.moments(trees, 1)
        for name, t in self.fresh[ENGINE].items():
            if self._is_new(name):
                silent = in_block(name) in OUTPUTS
                grown[ENGINE][name] = torch.zeros_like(t) if silent else t
        return grown

    def moments(self, trees: Trees, power: int) -> Trees:
        """Those of new blocks are zero."""
        old = trees[ENGINE]
        grown = {name: t for name, t in old.items() if not name.startswith("blocks.")}
        for block, source in enumerate(self.old_blocks):
            prefix = f"blocks.{source or 0}."
            for name, t in old.items():
                if name.startswith(prefix):
                    kept = torch.zeros_like(t) if source is None else t
                    grown[f"blocks.{block}.{in_block(name)}"] = kept
        return trees | {ENGINE: grown}

    def _is_new(self, name: str) -> bool:
        return any(
            source is None and name.startswith(f"blocks.{block}.")
            for block, source in enumerate(self.old_blocks)
        )

    def state(self, state: EngineState) -> EngineState:
        """A new block has read nothing."""
        empty = state.reset().blocks[0]
        blocks = (empty if source is None else state.blocks[source] for source in self.old_blocks)
        return dataclasses.replace(state, blocks=tuple(blocks))
