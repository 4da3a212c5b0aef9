"""What a person sees while a run trains: a bar in a terminal, plain lines elsewhere. On stderr."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from fractus_core.runs.budget import Spent

LINE_EVERY = 10.0
"""Seconds between plain lines."""


class Reporter:
    """Enter it for the time of a run."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, quiet=quiet)
        self._progress = Progress(
            TextColumn("step {task.fields[steps]:,}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f} %  loss {task.fields[loss]:.3f}"),
            TextColumn("{task.fields[rate]:,.0f} tokens/s"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task("", total=1.0, steps=0, loss=0.0, rate=0.0)
        self._begun: tuple[float, float] | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)

    def step(self, spent: Spent, progress: float, *, loss: float, rate: float) -> None:
        now = time.monotonic()
        if self._begun is None:
            self._begun = (progress, now)
        self._progress.update(
            self._task, completed=progress, steps=spent.steps, loss=loss, rate=rate
        )
        if not self.console.is_terminal and now - self._last_line >= LINE_EVERY:
            self._last_line = now
            self.note(
                f"step {spent.steps:,}  {progress:4.0%}  {spent.tokens:,} tokens  loss {loss:.3f}  "
                f"{rate:,.0f} tokens/s  {self._eta(progress, now)}"
            )

    def evaluating(self, read: int) -> None:
        """The last evaluation begins, or has read so many vectors; no source tells of how many."""
        now = time.monotonic()
        if read == 0:
            self.note("evaluating on all held-out data, in up to two passes")
        elif now - self._last_line >= LINE_EVERY:
            self.note(f"  {read:,} read")
        else:
            return
        self._last_line = now

    def _eta(self, progress: float, now: float) -> str:
        assert self._begun is not None
        gained = progress - self._begun[0]
        if gained <= 0:
            return ""
        left = round((1 - progress) * (now - self._begun[1]) / gained)
        return f"{left // 60}:{left % 60:02} left"

    def evaluation(self, frontend: str, spent: Spent, figures: dict[str, Any], sample: str) -> None:
        """One evaluation's figures; losses beside what a model that knows nothing scores."""
        shown = [
            f"loss {figures['loss_warm']:.4f} warm, {figures['loss_cold']:.4f} cold "
            f"(uniform {figures['loss_uniform']:.4f})"
        ]
        for name, value in figures.items():
            if isinstance(value, float) and not name.startswith("loss_"):
                shown.append(f"{name.replace('_', ' ')} {value:.4f}")
        blocks = figures["routing"]["blocks"]
        shown.append(f"routing entropy {min(b['entropy'] for b in blocks):.2f}")
        if dead := sum(b["dead"] for b in blocks):
            shown.append(f"{dead} dead experts")
        self.note(f"{frontend} at step {spent.steps:,}: " + ", ".join(shown))
        if sample:
            self.note("  sample: " + " ".join(sample.split())[:160])
