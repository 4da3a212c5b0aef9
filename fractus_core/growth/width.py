"""A wider residual stream and more heads. Exact where the new width is a multiple of the old.

Every channel of the residual stream is written several times; so the statistics of each LayerNorm
stay, and what reads the stream splits its weights. Where the width is no multiple, the channels
left over hold the mean of all: to a LayerNorm they are zero, and its other outputs grow by one
factor, which its gains take back. Only the thought, which enters channel by channel, cannot be
averaged into them; that is the drift.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fractus_core.engine import EngineConfig, EngineState
from fractus_core.engine.state import BlockState
from fractus_core.errors import FractusError
from fractus_core.growth.axes import Axis, Copied, Copies, Split, Weakened
from fractus_core.growth.growth import ENGINE, Growth, Trees, in_block

BLOCK_GAINS = ("norm_attention.weight", "norm_phases.weight", "norm_experts.weight")


class Width(Growth):
    def __init__(
        self, old: EngineConfig, new: EngineConfig, fresh: Trees, draw: torch.Generator
    ) -> None:
        super().__init__(old, new, fresh, draw)
        d, wider = old.d_model, new.d_model
        times, spare = divmod(wider, d)
        self.channels = Copies(torch.arange(d).repeat(times), spare)
        self.heads = head_sources(old, new)
        self.gain = math.sqrt((wider - spare) / wider)
        shares = self.channels.shares([wider - spare], 0, draw)
        self.shares = torch.cat([shares, torch.ones(spare)])
        """What part of the old engine's hidden channel each copy of it is, so that a front-end
        whose weights are copied, as the stream's are, gives the same answers."""

    def axes(self, module: str, name: str, shape: Sequence[int]) -> Sequence[Axis]:
        if module == ENGINE:
            return self.engine_axes(in_block(name))
        return self.frontend_axes(module, name, shape, self.fresh[module][name].shape)

    def engine_axes(self, name: str) -> Sequence[Axis]:
        D, H = self.old.d_head, self.old.n_heads

        def rows(parts: int) -> Copies:
            """(parts, heads, d_head) in one dimension, with more heads."""
            return Copies(torch.arange(parts * H * D).view(parts, H, D)[:, self.heads].flatten())

        def written(dim: int) -> Copied:
            return Copied(dim, self.channels)

        def read(dim: int) -> Split:
            return Split(dim, self.channels, read_spare=True)

        projected = rows(4 if self.old.output_gate else 3)
        axes: dict[str, Sequence[Axis]] = {
            "attention.in_proj.weight": [Copied(0, projected), read(1)],
            "attention.in_proj.bias": [Copied(0, projected)],
            "attention.out_proj.weight": [written(0), Split(1, rows(1))],
            "attention.out_proj.bias": [written(0)],
            "attention.level_logits": [Copied(0, Copies(self.heads))],
            "attention.head_weight": [Copied(0, Copies(self.heads))],
            "attention.head_bias": [Copied(0, Copies(self.heads))],
            "phases.drive.weight": [read(1)],
            "experts.experts.V1": [read(1)],
            "experts.experts.W1": [read(1)],
            "experts.experts.U2": [written(2)],
            "experts.experts.W2": [written(2)],
            "experts.experts.b2": [written(1)],
            "shift_attention.mix": [written(0)],
            "shift_experts.mix": [written(0)],
            "confidence_head.weight": [written(1)],  # it reads what front-ends do
            "thought_gate": [written(0)],
        }
        if "norm" in name:
            kind = Weakened if name.startswith("final_norm") else Copied
            return [kind(0, self.channels, mean=name.endswith("weight"))]
        return axes.get(name, ())

    def frontend_axes(
        self, module: str, name: str, old: Sequence[int], new: Sequence[int]
    ) -> Sequence[Axis]:
        """Where a shape follows d_model: written, and where it does twice, also read.

        Raises:
            FractusError: it follows in some other way.
        """
        grown = [dim for dim, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]
        if any((old[dim], new[dim]) != (self.old.d_model, self.new.d_model) for dim in grown):
            raise cannot_follow(module, f"{name} is {tuple(old)} and would be {tuple(new)}")
        return [
            Split(dim, self.channels) if i else Copied(dim, self.channels)
            for i, dim in enumerate(grown)
        ]

    def weights(self, trees: Trees) -> Trees:
        grown = super().weights(trees)
        for name, t in grown[ENGINE].items():
            if (local := in_block(name)) in BLOCK_GAINS:
                grown[ENGINE][name] = t * self.gain
            elif local == "final_norm.weight":
                grown[ENGINE][name] = t * self.gain * self.shares
            elif local == "final_norm.bias":
                grown[ENGINE][name] = t * self.shares
            elif local == "thought_gate":
                grown[ENGINE][name] = t / self.shares
        return grown

    def state(self, state: EngineState) -> EngineState:
        return dataclasses.replace(super().state(state), thought=self.hidden(state.thought))

    def block_state(self, block: BlockState) -> BlockState:
        return BlockState(
            S=block.S.index_select(2, self.heads),
            z=block.z.index_select(2, self.heads),
            clock=block.clock,
            shift_attention=self.channels.repeat(block.shift_attention, 1),
            shift_experts=self.channels.repeat(block.shift_experts, 1),
        )

    def hidden(self, hidden: Tensor) -> Tensor:
        """What the wider engine's hidden vectors are, where the old one's are these (..., d)."""
        return self.channels.repeat(hidden, hidden.dim() - 1) * self.shares


def cannot_follow(module: str, why: str) -> FractusError:
    name = module.removeprefix("frontend-")
    return FractusError(
        f"front-end {name!r} does not grow with d_model: {why}; leave d_model as is"
    )


def head_sources(old: EngineConfig, new: EngineConfig) -> Tensor:
    """(new heads,): the old head that each is; those that are new copy one with their decays."""
    distinct = new.decay_heads or new.n_heads
    sources = list(range(old.n_heads))
    for head in range(old.n_heads, new.n_heads):
        alike = range(head % distinct, old.n_heads, distinct)
        sources.append(alike[head // distinct % len(alike)])
    return torch.tensor(sources)
