"""The product as its users run it, and the data that it is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from fractus_bench.records import SkipCellError

DATA = "FRACTUS_BENCH_DATA"
"""The variable that names a folder with text/tinyshakespeare.txt and cifar10/."""


def data_file(name: str) -> Path:
    """Raises `SkipCellError` if it is not there."""
    folder = os.environ.get(DATA)
    if not folder:
        raise SkipCellError(f"set {DATA} to a folder with {name}")
    path = Path(folder) / name
    if not path.exists():
        raise SkipCellError(f"there is no {path}; {DATA} must name a folder with {name}")
    return path


def fractus(*args: str) -> dict[str, Any]:
    """What `fractus ARGS --json` prints."""
    command = [sys.executable, "-m", "fractus_core", *args, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed
