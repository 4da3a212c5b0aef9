"""An engine grown from a smaller one, against one of the same size from scratch."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch

from fractus_bench.product import data_file, fractus
from fractus_bench.records import Measured, Row
from fractus_bench.timing import spread


def chars(
    *,
    repeats: int,
    steps: int,
    further: int,
    every: int,
    small: str,
    large: str,
    options: list[str],
) -> Measured:
    """Tiny Shakespeare in characters; `loss` on the whole validation split, in nats.

    `small` is trained for `steps`, grown to `large`, and trained for `further` steps; beside it,
    `large` is trained for as many from scratch.
    """
    file = data_file("text/tinyshakespeare.txt")
    curves: dict[tuple[str, int], list[float]] = {}
    for seed in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            first, grown, scratch = (Path(folder) / name for name in ("first", "grown", "scratch"))
            common = [
                *("--data", str(file), "--text.tokenizer", "chars", "--seed", str(seed)),
                *("--cpu.threads", str(torch.get_num_threads()), "--eval-every", str(every)),
                *options,
            ]
            fractus("run", *common, "--preset", small, "--steps", str(steps), "--out", str(first))
            drift = fractus("grow", str(first), "--to", large, "-o", str(grown))
            fractus("run", "--resume", str(grown), "--steps", str(further))
            fractus(
                "run", *common, "--preset", large, "--steps", str(further), "--out", str(scratch)
            )
            for run, variant in (
                (first, small),
                (grown, f"{large}, grown"),
                (scratch, f"{large}, from scratch"),
            ):
                for step, loss in _curve(run):
                    curves.setdefault((variant, step), []).append(loss)
    rows: list[Row] = [
        {"variant": variant, "step": step, "loss": found[0] if repeats == 1 else spread(found)}
        for (variant, step), found in curves.items()
    ]
    kl = {f"kl_of_{step['kind']}": step["drift"]["text"]["kl"] for step in drift["steps"]}
    return Measured(rows, {"options": " ".join(options), **kl})


def _curve(run: Path) -> list[tuple[int, float]]:
    """Step and loss of each evaluation; of the last step, over all held-out data."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = {
        line["step"]: line["evaluation"]["loss_warm"] for line in lines if line["kind"] == "eval"
    }
    return sorted(found.items())
