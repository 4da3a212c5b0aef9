"""More oscillators: each becomes several a little apart, whose mean is where it was.

Nearly exact. Copies at the same phase would stay copies for ever; `SPREAD` apart they do not, and
since the sum of all is scaled by one factor, the mean phase stays but for the second order of the
coupling.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from fractus_core.engine.state import BlockState
from fractus_core.growth.axes import Axis, Copied, Copies, Paired
from fractus_core.growth.growth import ENGINE, Growth, Trees, in_block

SPREAD = 0.05
"""Radians from the mean to the outermost copy."""


class Oscillators(Growth):
    @property
    def times(self) -> int:
        return self.new.n_oscillators // self.old.n_oscillators

    @property
    def copies(self) -> Copies:
        return Copies(torch.arange(self.old.n_oscillators).repeat(self.times))

    def engine_axes(self, name: str) -> Sequence[Axis]:
        more = self.new.coupling_rank - self.old.coupling_rank
        copied = Copied(0, self.copies)
        axes: dict[str, Sequence[Axis]] = {
            "phases.omega": [copied],
            "phases.drive.weight": [copied],
            "phases.drive.bias": [copied],
            "phases.coupling_u": [copied, Paired(1, more, outgoing=False)],
            "phases.coupling_lambda": [Paired(0, more, outgoing=True)],
        }
        return axes.get(name, ())

    def weights(self, trees: Trees) -> Trees:
        grown = super().weights(trees)
        apart = torch.linspace(-SPREAD, SPREAD, self.times) if self.times > 1 else torch.zeros(1)
        for name, t in grown[ENGINE].items():
            if in_block(name) == "phases.drive.bias":
                grown[ENGINE][name] = t + apart.repeat_interleave(self.old.n_oscillators)
            elif in_block(name) == "phases.coupling_lambda":
                # Each is coupled to all copies of each.
                grown[ENGINE][name] = t / apart.cos().sum()
        return grown

    def block_state(self, block: BlockState) -> BlockState:
        return dataclasses.replace(block, clock=self.copies.repeat(block.clock, 1))
