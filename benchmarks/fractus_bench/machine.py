"""Where and with what something was measured. Imports no torch until the peak is asked for."""

from __future__ import annotations

import platform
import subprocess
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

SIZES = (1024, 1536, 2048)
"""Sides of the square matrices whose product is timed."""
TRIES = 3


def describe() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": psutil.cpu_count(logical=False) or psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "fractus": version("fractus"),
        "commit": _commit(),
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _commit() -> str | None:
    """Of the sources that run, if they are in a git repository; `-dirty` if they were changed."""
    here = ["git", "-C", str(Path(__file__).parent)]
    tracked = [*here, "ls-files", "--error-unmatch", Path(__file__).name]
    name = [*here, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        subprocess.run(tracked, capture_output=True, check=True)
        return subprocess.run(name, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def gemm_peak() -> dict[str, float]:
    """GFLOP/s of the best square matrix product, by precision: what MFU is a part of."""
    import torch

    best = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        fastest = 0.0
        for n in SIZES:
            a, b = torch.randn(2, n, n).to(dtype)
            a @ b
            for _ in range(TRIES):
                begun = time.perf_counter()
                a @ b
                fastest = max(fastest, 2 * n**3 / (time.perf_counter() - begun) / 1e9)
        best[name] = round(fastest, 1)
    return best
