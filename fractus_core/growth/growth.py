"""What every kind of growth does: weights, an optimizer's averages, and streams become larger."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fractus_core.engine import EngineConfig, EngineState
from fractus_core.engine.state import BlockState
from fractus_core.growth.axes import Axis

Trees = dict[str, dict[str, Tensor]]
"""Module (`engine`, `frontend-NAME`) to parameter to tensor."""
ENGINE = "engine"


class Growth:
    """From one engine to a larger one. Subclasses say along which axes each parameter grows."""

    def __init__(
        self, old: EngineConfig, new: EngineConfig, fresh: Trees, draw: torch.Generator
    ) -> None:
        """`fresh` are the weights of an untrained model of the new size."""
        self.old, self.new, self.fresh, self.draw = old, new, fresh, draw

    def axes(self, module: str, name: str, shape: Sequence[int]) -> Sequence[Axis]:
        """Of a parameter that has this shape; none where it stays as it is."""
        return self.engine_axes(in_block(name)) if module == ENGINE else ()

    def engine_axes(self, name: str) -> Sequence[Axis]:
        """Of a parameter, by its name within its block."""
        return ()

    def weights(self, trees: Trees) -> Trees:
        def grow(module: str, name: str, t: Tensor) -> Tensor:
            for axis in self.axes(module, name, t.shape):
                t = axis.values(t, self.draw)
            return t

        return _each(trees, grow)

    def moments(self, trees: Trees, power: int) -> Trees:
        """What an optimizer keeps of each parameter: averages of gradients to that power."""

        def grow(module: str, name: str, t: Tensor) -> Tensor:
            for axis in self.axes(module, name, t.shape) if t.dim() else ():
                t = axis.gradients(t, power)
            return t

        return _each(trees, grow)

    def state(self, state: EngineState) -> EngineState:
        """Streams of the old engine go on in the new one."""
        return dataclasses.replace(
            state, blocks=tuple(self.block_state(block) for block in state.blocks)
        )

    def block_state(self, block: BlockState) -> BlockState:
        return block


def in_block(name: str) -> str:
    """`blocks.3.norm_phases.weight` is `norm_phases.weight`."""
    return re.sub(r"^blocks\.\d+\.", "", name)


def _each(trees: Trees, grow: Callable[[str, str, Tensor], Tensor]) -> Trees:
    return {
        module: {name: grow(module, name, t) for name, t in tensors.items()}
        for module, tensors in trees.items()
    }
