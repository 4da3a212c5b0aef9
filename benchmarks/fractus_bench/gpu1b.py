"""All that a GPU is measured for, in one call: `python -m fractus_bench.gpu1b --out DIRECTORY`.

Batch sizes are tried up to the largest that the trainer's preflight lets in. At the fastest, the
step is compiled too, and profiled. Writes `result.json`, and for each variant `profile-*.csv`.
"""

from __future__ import annotations

import csv
import functools
import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import click
import psutil
import torch
from torch.profiler import ProfilerActivity, profile

from fractus_bench import machine
from fractus_bench.flops import TRAINING, forward_flops
from fractus_bench.training import RandomTokens, defaults, make_model, make_trainer
from fractus_core.api import ContinuousThoughtEngine, EngineConfig, Frontend
from fractus_core.engine import PRESETS
from fractus_trainers.gpu1b import SAFE, Gpu1bTrainer
from fractus_trainers.options import GPU1B
from fractus_trainers.preflight import estimate, free_memory, largest_batch

GROWTH = 4
"""From one batch size that is tried to the next."""
SIDE = {"cuda": 8192, "cpu": 2048}
"""Of the square matrices whose product is the peak."""
PROFILED = 3
"""Steps."""


class Subject:
    """Steps of `gpu1b` at a size, on random tokens."""

    def __init__(self, preset: str, vocabulary: int, options: dict[str, Any]) -> None:
        self.config = EngineConfig(**PRESETS[preset])
        self.vocabulary = vocabulary
        self.options = defaults(GPU1B) | {"threads": torch.get_num_threads()} | options
        # Takes seconds at `1b`.
        self.worst = functools.cache(lambda rows: estimate(self.build, self.options, rows).worst)
        """Bytes foretold, by batch size."""

    def build(self) -> tuple[ContinuousThoughtEngine, list[Frontend]]:
        engine, head = make_model(self.vocabulary, self.config)
        return engine, [cast(Frontend, head)]

    def steps(self, **changed: Any) -> tuple[Callable[[], int], dict[str, Any]]:
        """A call that makes a step and tells its tokens, and the options as decided."""
        options = self.options | changed
        rows, chunk_len = options["batch_size"], options["chunk_len"]
        model = make_model(self.vocabulary, self.config)
        source = RandomTokens(self.vocabulary, rows, chunk_len)
        trainer, _ = make_trainer(*model, source, kind=Gpu1bTrainer, **options)
        steps = trainer.train(lambda: 0.0)
        return lambda: next(steps).tokens, trainer.options

    def flops_per_token(self) -> float:
        chunk_len = self.options["chunk_len"]
        return TRAINING * sum(forward_flops(self.config, self.vocabulary, chunk_len).values())


def gemm_flops(device: str, precision: str) -> float:
    """Operations a second of the best of a few large matrix products."""
    n = SIDE[device]
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a, b = torch.randn(2, n, n, device=device, dtype=dtype)
    best = min(timed(lambda: a @ b, device) for _ in range(6))
    return float(2 * n**3 / best)


def timed(call: Callable[[], object], device: str) -> float:
    """Seconds, until the device is done."""
    wait(device)
    begun = time.perf_counter()
    call()
    wait(device)
    return time.perf_counter() - begun


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(
    subject: Subject, peak: float, seconds: float, table: Path | None = None, **changed: Any
) -> dict[str, Any]:
    """Speed and memory of one variant, and its profile in `table`, if any.

    What does not fit after all says so.
    """
    device = subject.options["device"]
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    try:
        step, options = subject.steps(**changed)
        step()
        first = timed(step, device)
        count = max(2, round(seconds / first))
        tokens = step()
        rate = count * tokens / timed(lambda: [step() for _ in range(count)], device)
        if table is not None:
            write_profile(step, device, table)
    except torch.OutOfMemoryError:
        return {**changed, "status": "out of memory"}
    flops = rate * subject.flops_per_token()
    compiled = {name: options[name] for name in options if name.startswith("compile_")}
    return {
        **changed,
        "status": "ok",
        "tokens_per_second": round(rate, 1),
        "gflops": round(flops / 1e9, 1),
        "mfu_percent": round(100 * flops / peak, 2),
        "peak_memory_gb": round(memory_taken(device) / 1e9, 3),
        "estimated_memory_gb": round(subject.worst(options["batch_size"]) / 1e9, 3),
        **compiled,
    }


def memory_taken(device: str) -> int:
    """The most of the GPU's; of a CPU, the process's now."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    size: int = psutil.Process().memory_info().rss
    return size


def write_profile(step: Callable[[], int], device: str, path: Path) -> None:
    """A line of CSV for each operation, the longest first."""
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as found:
        for _ in range(PROFILED):
            step()
        wait(device)
    events = [
        (
            event.key,
            event.count,
            event.self_cpu_time_total,
            event.cpu_time_total,
            event.self_device_time_total,
        )
        for event in found.key_averages()
    ]
    events.sort(key=lambda event: event[4] if device == "cuda" else event[2], reverse=True)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["operation", "calls", "self_cpu_us", "cpu_us", "self_device_us"])
        writer.writerows(events)


def batch_sizes(largest: int) -> Iterator[int]:
    size = 1
    while size < largest:
        yield size
        size *= GROWTH
    yield largest


@click.command()
@click.option("--device", default="cuda", show_default=True, type=click.Choice(SIDE))
@click.option("--preset", default="1b", show_default=True, type=click.Choice(PRESETS))
@click.option("--vocabulary", default=50257, show_default=True, type=click.IntRange(min=1))
@click.option("--optimizer", default="adamw", show_default=True)
@click.option("--chunk-len", default=128, show_default=True, type=click.IntRange(min=1))
@click.option("--most-rows", default=512, show_default=True, type=click.IntRange(min=1))
@click.option("--seconds", default=5.0, show_default=True, help="Of each measurement.")
@click.option("--cuda-graphs", is_flag=True, help="Measure replayed kernels too.")
@click.option("--out", default="gpu1b-results", show_default=True, type=click.Path(path_type=Path))
def main(
    device: str,
    preset: str,
    vocabulary: int,
    optimizer: str,
    chunk_len: int,
    most_rows: int,
    seconds: float,
    cuda_graphs: bool,
    out: Path,
) -> None:
    """Measure tokens/s, MFU and memory of the trainer gpu1b, compiled and not, with profiles."""
    begun = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    subject = Subject(
        preset,
        vocabulary,
        {"device": device, "optimizer": optimizer, "chunk_len": chunk_len, "lr": 1e-4},
    )
    Gpu1bTrainer(subject.options, seed=0)  # refuses what this machine cannot do
    peak = gemm_flops(device, "bf16")
    free = free_memory(torch.device(device))
    largest = most_rows
    if subject.worst(most_rows) > SAFE * free:
        largest = largest_batch(subject.worst, SAFE * free, 8)
    result: dict[str, Any] = {
        "machine": machine.describe()
        | ({"gpu": torch.cuda.get_device_name()} if device == "cuda" else {}),
        "preset": preset,
        "options": subject.options,
        "gemm_gflops": round(peak / 1e9, 1),
        "free_gb": round(free / 1e9, 2),
        "largest_batch": largest,
        "variants": [],
    }

    def add(variant: dict[str, Any]) -> None:
        result["variants"].append(variant)
        (out / "result.json").write_text(json.dumps(result, indent=1))
        click.echo(", ".join(f"{name} {value}" for name, value in variant.items()))

    click.echo(f"{device}: {peak / 1e12:.2f} TFLOP/s in bf16, {largest:,} rows fit")
    for size in batch_sizes(largest):
        add(measure(subject, peak, seconds, batch_size=size))
        if result["variants"][-1]["status"] != "ok":
            break
    fitting = [v for v in result["variants"] if v["status"] == "ok"]
    if not fitting:
        raise click.ClickException(f"not one row of {preset} fits into {free / 1e9:.1f} GB")
    best = max(fitting, key=lambda v: v["tokens_per_second"])["batch_size"]
    again: list[dict[str, Any]] = [{"compile": False}, {"compile": True}]
    again += [{"compile": True, "cuda_graphs": True}] if cuda_graphs else []
    for changed in again:
        name = "-".join(["profile", *(key for key, value in changed.items() if value)])
        table = out / f"{name}.csv"
        add(measure(subject, peak, seconds, table, batch_size=best, **changed))
    click.echo(f"{time.perf_counter() - begun:.0f} s; {out / 'result.json'}")


if __name__ == "__main__":
    main()
