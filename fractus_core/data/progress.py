"""A progress bar on stderr for making data."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import click

Progress = Callable[[int, int], None]
"""Told how much of how much is done."""


@contextmanager
def progress_bar(label: str) -> Iterator[Progress]:
    """Gives a function to call with what is done and all there is; nothing shows before."""
    with ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if not bars:
                bar = click.progressbar(length=total, label=label, file=sys.stderr)
                bars.append(stack.enter_context(bar))
            bars[0].update(done - bars[0].pos)

        yield show
