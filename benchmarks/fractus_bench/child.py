"""One cell, in a process of its own: `python -m fractus_bench.child CALL OUTCOME`.

CALL is a JSON object with `target`, `arguments` and `repeats`; what came of it is written to the
file OUTCOME, as JSON. A process that dies leaves none. Stdin is a pipe that closes when whoever
started this is gone, and then it ends, with all that it started.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fractus_bench.machine import gemm_peak
from fractus_bench.records import Measured, Row, SkipCellError
from fractus_core.api import write_atomically
from fractus_core.errors import describe


def main(call: str, outcome: str) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    write_atomically(Path(outcome), json.dumps(measure(**json.loads(call))).encode())


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)  # nothing is ever written: it returns when the other end closes
    os.killpg(0, signal.SIGKILL)


def measure(target: str, arguments: dict[str, Any], repeats: int) -> dict[str, Any]:
    """`status`, and `rows`, `facts` and `gemm_gflops` or the reason in `detail`."""
    try:
        module, _, name = target.partition(":")
        function: Callable[..., Measured] = getattr(importlib.import_module(module), name)
        measured = function(repeats=repeats, **arguments)
    except SkipCellError as reason:
        return {"status": "skipped", "detail": str(reason)}
    except Exception as error:
        traceback.print_exception(error)
        full = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        return {"status": "out of memory" if full else "crashed", "detail": describe(error)}
    peak = gemm_peak()
    add_mfu(measured.rows, peak)
    return {
        "status": "ok",
        "detail": "",
        "gemm_gflops": peak,
        "rows": measured.rows,
        "facts": dict(measured.facts),
    }


def add_mfu(rows: list[Row], peak: dict[str, float]) -> None:
    """Model FLOPs utilisation, in percent of the peak in the row's precision."""
    for row in rows:
        if "gflops" in row:
            row["mfu"] = 100 * row["gflops"] / peak[row.get("precision", "fp32")]


if __name__ == "__main__":
    main(*sys.argv[1:])
