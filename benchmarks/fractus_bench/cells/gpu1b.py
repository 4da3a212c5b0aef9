"""The trainer `gpu1b` on a CPU: its memory at full size, and blocks that learn in turn."""

from __future__ import annotations

import random
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from fractus_bench.gpu1b import Subject
from fractus_bench.records import Measured, SkipCellError
from fractus_bench.timing import compare

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog"]


def step(*, repeats: int, preset: str, vocabulary: str, options: list[str]) -> Measured:
    """One optimizer step from the command line: the most memory that the process had, against what
    its preflight foretold of the tensors."""
    if sys.platform != "linux":
        raise SkipCellError("the unit of ru_maxrss is known on Linux alone")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.txt"
        corpus.write_text(" ".join(random.Random(0).choices(WORDS, k=4000)))
        for number in range(repeats):
            command = [
                *(sys.executable, "-m", "fractus_core", "run", "--data", str(corpus)),
                *("--text.tokenizer", vocabulary, "--text.validation", "0.05"),
                *("--trainer", "gpu1b", "--device", "cpu", "--preset", preset, "--steps", "1"),
                *("--out", str(Path(folder) / str(number)), *options),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise SkipCellError(done.stderr.strip().splitlines()[-1])
            told = re.search(r"worst moment +([\d.]+) GB", done.stderr)
            assert told is not None, done.stderr
            peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
            rows.append(
                {
                    "variant": " ".join([preset, *options]),
                    "estimated_gb": float(told[1]),
                    "peak_gb": round(peak, 3),
                    "error_percent": round(100 * (float(told[1]) / peak - 1), 1),
                }
            )
    return Measured(rows)


def turns(*, repeats: int, preset: str, vocabulary: int, active: list[int]) -> Measured:
    """A step in which so many blocks learn; 0 is all."""
    subject = Subject(preset, vocabulary, {"device": "cpu", "precision": "fp32"})
    calls = {f"{n or 'all'} of {subject.config.n_layers}": subject.steps(pgsu=n)[0] for n in active}
    return Measured(compare(calls, repeats), {"vocabulary": vocabulary, "preset": preset})
