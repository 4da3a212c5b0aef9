"""What a person sees while cells run: a bar in a terminal, plain lines in any case. On stderr."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich import progress
from rich.console import Console

from fractus_bench.results import Result


class Progress:
    """Enter it for the time of a command."""

    def __init__(self, cells: int) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
            transient=True,
        )
        self._task = self._bar.add_task("", total=cells)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, cell: str) -> None:
        self._bar.update(self._task, description=cell)

    def end(self, result: Result) -> None:
        self._bar.advance(self._task)
        line = f"{result['cell']}: {result['status']}, {result['seconds']:.1f} s"
        if result["detail"]:
            line += f" ({result['detail']})"
        self._console.print(line, markup=False, soft_wrap=True)
