"""One step by several processes: each reads its rows, and all have the same weights after it.

`ddp` keeps all weights on every rank, and averages their gradients (Li et al., arXiv 2006.15704).
`fsdp2` keeps an equal part of weights, gradients and optimizer on each, and puts a block's weights
together while it computes (Zhao et al., arXiv 2304.11277).

The mean over ranks of the gradients of their means is the gradient of the mean over all rows, since
each rank has equally many. The load-balance loss is no mean over rows: f(P) of the mean gate P. So
each rank r takes it of P_r + (P - P_r).detach(), P the mean of all P_r. Its value is f(P), and the
mean over ranks of its gradients is mean(f'(P) dP_r) = f'(P) dP, that of f(P). (That the balance is
to be that of the global batch: Qiu et al., arXiv 2501.11873.)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from fractus_core.api import ContinuousThoughtEngine, ranks
from fractus_trainers.objective import Objective


class Parallel:
    """An objective that all ranks of a run descend together."""

    def __init__(self, objective: Objective, how: str, device: torch.device) -> None:
        """`how` is `ddp` or `fsdp2`, which puts other parameters in the modules."""
        self.objective = objective
        self.module: nn.Module
        if how == "fsdp2":
            # Nothing here changes in place what a block returned, as a state's views.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            mesh = init_device_mesh(device.type, (ranks.world(),))
            for block in objective.engine.blocks:
                fully_shard(block, mesh=mesh)
            self.module = cast(nn.Module, fully_shard(objective, mesh=mesh))
        else:
            self.module = DistributedDataParallel(
                objective,
                device_ids=None if device.type == "cpu" else [torch.cuda.current_device()],
                forward_sync_buffers=False,  # constants
                gradient_as_bucket_view=True,
                # Other lanes' front-ends, and the thought's gate where no thought enters.
                find_unused_parameters=True,
            )

    @contextmanager
    def computing(self, *, last: bool) -> Iterator[None]:
        """For a forward and backward pass, the `last` of a step or not."""
        ddp = isinstance(self.module, DistributedDataParallel)
        # fsdp2 shares out each pass's gradients: keeping them whole would take its memory.
        waits = cast(DistributedDataParallel, self.module).no_sync() if ddp and not last else None
        with reading_together(self.objective.engine), waits or nullcontext():
            yield

    def gather_heads(self) -> None:
        """The weights outside of blocks are whole until after the next backward pass."""
        if isinstance(self.module, FSDPModule):
            self.module.unshard()

    def noise(self, shared: torch.Generator) -> torch.Generator:
        """Another on each rank, from one that stays the same on all."""
        seed = int(torch.randint(2**62, (), generator=shared))
        return torch.Generator().manual_seed(seed + ranks.rank())


@contextmanager
def reading_together(engine: ContinuousThoughtEngine) -> Iterator[None]:
    """Meanwhile all ranks read one batch, of which each has rows."""
    experts = [block.experts for block in engine.layers]
    alone = engine.all_positions, [part.all_mean for part in experts]
    engine.all_positions = ranks.together
    for part in experts:
        part.all_mean = mean_over_ranks
    try:
        yield
    finally:
        engine.all_positions = alone[0]
        for part, all_mean in zip(experts, alone[1], strict=True):
            part.all_mean = all_mean


def mean_over_ranks(x: Tensor) -> Tensor:
    """The mean of all ranks' x, with the gradient of this rank's."""
    return x + (ranks.mean(x) - x.detach())
