"""`fractus run` under torchrun: several processes that train one run. Imports no torch.

Each reads the same options and goes the same way; the first alone speaks. See docs/distributed.md.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click

from fractus_core.errors import FractusError

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Of torchrun. A shell may have some of them for other reasons."""


def processes() -> int:
    """That were started together with this one, by torchrun or whatever sets its variables.

    Raises:
        FractusError: if the variables make no sense.
    """
    if any(name not in os.environ for name in VARIABLES):
        return 1
    told = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE")}
    try:
        rank, world = map(int, told.values())
    except ValueError:
        rank, world = -1, 0
    if not 0 <= rank < world:
        said = ", ".join(f"{name}={value}" for name, value in told.items())
        raise FractusError(
            f"{said}: this process should be one of several, numbered from 0; start them with "
            "torchrun, or unset these variables"
        )
    return world


def number() -> int:
    """Of this one among them, from 0; 0 too where the variables make no sense."""
    try:
        return int(os.environ["RANK"]) if processes() > 1 else 0
    except FractusError:
        return 0


@contextmanager
def speaking() -> Iterator[None]:
    """Nothing is shown of what any process but the first prints."""
    with ExitStack() as stack:
        if number() > 0:
            nowhere = stack.enter_context(Path(os.devnull).open("w"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        yield


def require_parallel(ctx: click.Context, name: str, options: Mapping[str, Any], do: str) -> None:
    """Raises `click.UsageError` if several processes were started, and the trainer uses one."""
    if processes() > 1 and options.get("parallel", "none") == "none":
        require_one(ctx, f"trainer {name!r}", do)


def require_one(ctx: click.Context, who: str, do: str = "leave out torchrun") -> None:
    """Raises `click.UsageError` if several processes were started, for all would do the same."""
    if processes() > 1:
        raise click.UsageError(
            f"torchrun started {processes()} processes, and {who} computes in one: {do}", ctx
        )


@contextmanager
def joined() -> Iterator[None]:
    """Meanwhile the processes are the ranks of a run; one alone is none."""
    if processes() == 1:
        yield
        return
    # Of parameters that are unused in some steps, as they may be.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from fractus_core.runs import ranks

    ranks.join()
    try:
        with ranks.watched():
            yield
    except FractusError as error:
        raise ranks.settled(error) from error
    except click.exceptions.Exit:
        ranks.leave()
        raise
    ranks.leave()
