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


def processes() -> int:
    """That were started together with this one, by torchrun or whatever sets its variables."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 1


def number() -> int:
    """Of this one among them, from 0."""
    return int(os.environ["RANK"]) if processes() > 1 else 0


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
        raise click.UsageError(
            f"torchrun started {processes()} processes, and trainer {name!r} computes in one: {do}",
            ctx,
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
