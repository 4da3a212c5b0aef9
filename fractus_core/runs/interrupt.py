"""Ctrl-C and SIGTERM end a run after its current step, with a checkpoint."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Self

from fractus_core.runs import ranks

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """While entered, the first signal sets `requested`; a second one acts at once, as usual."""

    def __init__(self) -> None:
        self.noticed: signal.Signals | None = None
        """By this process."""
        self.requested: signal.Signals | None = None
        """The same; but of several ranks, what they have agreed on."""

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.noticed = signal.Signals(number)
        if ranks.world() == 1:
            self.requested = self.noticed
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def __enter__(self) -> Self:
        self._previous = {number: signal.signal(number, self._request) for number in SIGNALS}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._restore()
        if error is not None and ranks.world() > 1:
            ranks.outlive_others()
