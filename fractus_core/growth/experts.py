"""More experts: each begins as a copy of the old one whose phase is nearest. Not exact.

The phases of all experts change with their number, and a token visits the `top_k` nearest to its
own, so which experts it visits changes however they are made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fractus_core.engine.farey import expert_phases
from fractus_core.growth.axes import Axis, Copied, Copies
from fractus_core.growth.growth import Growth


class Experts(Growth):
    def engine_axes(self, name: str) -> Sequence[Axis]:
        if not name.startswith("experts.experts."):
            return ()
        return [Copied(0, Copies(nearest_expert(self.old.n_experts, self.new.n_experts)))]


def nearest_expert(old: int, new: int) -> Tensor:
    """(new,): of each new expert, the old one whose phase is nearest on the circle."""
    phases = [torch.tensor(expert_phases(n), dtype=torch.float64) for n in (new, old)]
    distance = torch.remainder(phases[0][:, None] - phases[1], 2 * math.pi)
    return torch.minimum(distance, 2 * math.pi - distance).argmin(1)
