"""The trainer `cpu`: online training on the processor's cores."""

from __future__ import annotations

import time

from fractus_core.api import Json, Lane, keep_freed_memory
from fractus_trainers.online import OnlineTrainer

PROBE_REPEATS = 4
"""Timings of each precision, of which the shortest counts."""


class CpuTrainer(OnlineTrainer):
    """In fp32 or bf16, whichever is faster if asked to choose."""

    name = "cpu"

    def __init__(self, options: Json, *, seed: int) -> None:
        super().__init__(options, seed=seed)
        keep_freed_memory()

    def _choose_precision(self, lane: Lane) -> str:
        precision = super()._choose_precision(lane)
        return self._faster_precision(lane) if precision == "auto" else precision

    def _faster_precision(self, lane: Lane) -> str:
        """Time forward and backward over one chunk in each precision."""
        best = {}
        for precision in ("fp32", "bf16"):
            self._set_precision(precision)
            times = []
            for _ in range(PROBE_REPEATS):
                begun = time.perf_counter()
                self._rehearse(lane)
                times.append(time.perf_counter() - begun)
            best[precision] = min(times)
        return min(best, key=lambda precision: best[precision])
