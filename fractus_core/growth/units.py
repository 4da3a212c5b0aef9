"""More rank and more hidden units in the experts, in pairs that cancel: exact."""

from __future__ import annotations

from collections.abc import Sequence

from fractus_core.growth.axes import Axis, Paired
from fractus_core.growth.growth import Growth


class Rank(Growth):
    def engine_axes(self, name: str) -> Sequence[Axis]:
        more = self.new.expert_rank - self.old.expert_rank
        axes: dict[str, Axis] = {
            "experts.experts.V1": Paired(2, more, outgoing=False),
            "experts.experts.U1": Paired(1, more, outgoing=True),
            "experts.experts.V2": Paired(2, more, outgoing=False),
            "experts.experts.U2": Paired(1, more, outgoing=True),
        }
        return [axes[name]] if name in axes else ()


class Hidden(Growth):
    """d_ff."""

    def engine_axes(self, name: str) -> Sequence[Axis]:
        more = self.new.d_ff - self.old.d_ff
        axes: dict[str, Axis] = {
            "experts.experts.U1": Paired(2, more, outgoing=False),
            "experts.experts.W1": Paired(2, more, outgoing=False),
            "experts.experts.b1": Paired(1, more, outgoing=False),
            "experts.experts.V2": Paired(1, more, outgoing=True),
            "experts.experts.W2": Paired(1, more, outgoing=True),
        }
        return [axes[name]] if name in axes else ()
