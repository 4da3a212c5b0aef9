"""The processes of one run, where torchrun has started several, and what they agree on.

Rank 0 alone writes and speaks; the others compute with it. In a run of one process every function
here does nothing, and does it at once.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from fractus_core.errors import FractusError, LostError, ToldError, describe

T = TypeVar("T")

PATIENCE = timedelta(days=7)
"""How long a rank waits for what rank 0 does alone: a long evaluation is no fault. That another
has died it is told at once, by its connection."""
HEARING = timedelta(seconds=2)
"""How long ranks with an error wait to hear whether others have the same."""

_launcher = 0
"""The process that started this one."""
_control: dist.ProcessGroup | None = None
"""For agreements, on the processors. None in a run of one process."""


def join() -> None:
    """Become one of the ranks that torchrun's environment tells of.

    Raises:
        FractusError: if the others cannot be reached.
    """
    global _control, _launcher
    _launcher = os.getppid()
    # torchrun may have started all before, and keeps its store: nothing of that is to be read.
    attempt = f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    try:
        store, number, count = next(iter(rendezvous("env://")))
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=PrefixStore(attempt, store),
            rank=number,
            world_size=count,
        )
        made = dist.new_group(backend="gloo", timeout=PATIENCE)
    except (ValueError, RuntimeError) as error:
        place = ":".join(os.environ.get(name, "?") for name in ("MASTER_ADDR", "MASTER_PORT"))
        raise FractusError(
            f"cannot reach the other processes at {place} (MASTER_ADDR, MASTER_PORT): "
            f"{describe(error)}; start them all with torchrun"
        ) from error
    assert isinstance(made, dist.ProcessGroup)
    _control = made


def orphaned() -> bool:
    """Whether what started this rank is gone, as a killed torchrun."""
    return world() > 1 and os.getppid() != _launcher


def leave() -> None:
    """At the end, when no rank waits for another."""
    global _control
    _control = None
    dist.destroy_process_group()


def world() -> int:
    return 1 if _control is None else dist.get_world_size()


def rank() -> int:
    return 0 if _control is None else dist.get_rank()


def is_first() -> bool:
    return rank() == 0


def here() -> tuple[int, int]:
    """This rank's number on this machine, and how many ranks there are on it."""
    if world() == 1:
        return 0, 1
    return int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def command() -> str:
    """What starts as many processes as there are."""
    if world() == 1:
        return "fractus"
    _, count = here()
    nodes = f"--nnodes {world() // count} ... " if world() > count else ""
    return f"torchrun {nodes}--nproc-per-node {count} -m fractus_core"


# ------------------------------------------------------------------------------------ agreements


def first(action: Callable[[], T]) -> T:
    """What `action` returns on rank 0, on every rank; a JSON value.

    The others wait meanwhile, and fail if it fails.
    """
    if world() == 1:
        return action()
    if not is_first():
        told = _from_first(None)
        if told["ended"] == "interrupted":
            raise KeyboardInterrupt
        if told["ended"] == "failed":
            raise ToldError(told["error"])
        result: T = told["result"]
        return result
    try:
        result = action()
    except BaseException as error:
        ended = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        _from_first({"ended": ended, "error": describe(error)})
        raise
    _from_first({"ended": "well", "result": result})
    return result


def _from_first(value: Any) -> Any:
    """Rank 0's, on every rank; as JSON, so that nothing is unpickled."""
    text = json.dumps(value).encode() if is_first() else b""
    size = torch.tensor([len(text)])
    dist.broadcast(size, src=0, group=_control)
    content = torch.frombuffer(bytearray(text or bytes(int(size))), dtype=torch.uint8)
    dist.broadcast(content, src=0, group=_control)
    return json.loads(content.numpy().tobytes())


def agree(*clocks: float, asked: bool) -> tuple[list[float], bool]:
    """Rank 0's `clocks`, and whether any rank was `asked` to stop."""
    if world() == 1:
        return list(clocks), asked
    own = [clock * is_first() for clock in clocks]
    values = torch.tensor([*own, float(asked)], dtype=torch.float64)
    dist.all_reduce(values, group=_control)
    *agreed, asking = values.tolist()
    return agreed, asking > 0


def least(value: int) -> int:
    """Of all ranks' values."""
    if world() == 1:
        return value
    found = torch.tensor([value])
    dist.all_reduce(found, op=dist.ReduceOp.MIN, group=_control)
    return int(found)


# --------------------------------------------------------------------------------------- tensors


def mean(x: Tensor) -> Tensor:
    """Of all ranks' x, which may be on any device; without a gradient."""
    if world() == 1:
        return x
    total = x.detach().clone()
    dist.all_reduce(total)
    return total / world()


def own(x: Tensor) -> Tensor:
    """This rank's part of x (W B, ...), the same on all ranks: (B, ...)."""
    if world() == 1:
        return x
    B = len(x) // world()
    return x[rank() * B : (rank() + 1) * B]


def together(x: Tensor) -> Tensor:
    """All ranks' x (B, ...), in their order: (W B, ...)."""
    if world() == 1:
        return x
    parts = [torch.empty_like(x) for _ in range(world())]
    # A small tensor on the processor must not wait for what a device computes.
    dist.all_gather(parts, x.contiguous(), group=_control if x.device.type == "cpu" else None)
    return torch.cat(parts)


# ---------------------------------------------------------------------------------------- errors


@contextmanager
def watched() -> Iterator[None]:
    """Raises `LostError` where another rank is gone, in whatever they were doing together."""
    try:
        yield
    except RuntimeError as error:
        if world() == 1 or not _is_of_the_network(error):
            raise
        raise LostError("another process of this run has ended, or cannot be reached") from error


def _is_of_the_network(error: RuntimeError) -> bool:
    words = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe")
    return isinstance(error, dist.DistError) or any(word in str(error) for word in words)


def outlive_others() -> None:
    """torchrun ends all ranks when one has ended: what this one has to say, it says first."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def settled(error: FractusError) -> FractusError:
    """`error`, or `ToldError` where another rank says the same. It may be that no other is left."""
    if world() == 1:
        return error
    store, mine = dist.distributed_c10d._get_default_store(), str(error)
    with suppress(RuntimeError):  # of a store that is gone, or a rank that has no error
        if isinstance(error, LostError):  # who notices first, speaks
            return error if store.add("lost", 1) == 1 else ToldError(mine)
        if is_first():
            outlive_others()
            store.set("error", mine)
            store.wait([f"heard by {other}" for other in range(1, world())], HEARING)
            return error
        store.wait(["error"], HEARING)
        first: bytes = store.get("error")
        store.set(f"heard by {rank()}", "")
        return ToldError(mine) if first.decode() == mine else error
    return error
