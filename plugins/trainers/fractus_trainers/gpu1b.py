"""The trainer `gpu1b`: a billion parameters on GPUs, or the same at a small size on a CPU."""

from __future__ import annotations

import functools
import os
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fractus_core.api import (
    Batch,
    ContinuousThoughtEngine,
    EngineState,
    FractusError,
    Json,
    Lane,
    ranks,
)
from fractus_trainers.objective import Objective, Outcome
from fractus_trainers.online import OnlineTrainer
from fractus_trainers.preflight import (
    Build,
    Estimate,
    estimate,
    free_memory,
    largest_batch,
    whole_at_once,
)

if TYPE_CHECKING:
    from fractus_trainers.parallel import Parallel

SAFE = 0.9
"""Part of the free memory that may be counted on; an allocator cannot use all of it."""


class Gpu1bTrainer(OnlineTrainer):
    """In bf16 on fp32 weights and state. Computes where it is told, and nowhere else."""

    name = "gpu1b"
    parallel: Parallel | None = None

    def __init__(self, options: Json, *, seed: int) -> None:
        _require_possible(options)
        number, count = ranks.here()
        threads = options["threads"] or max(1, (os.cpu_count() or 1) // count)
        super().__init__({**options, "threads": threads}, seed=seed)
        self.device = torch.device(options["device"])
        if self.device.type == "cuda":
            if count > 1:
                torch.cuda.set_device(number)
            torch.set_float32_matmul_precision("high")  # TF32, where it computes in fp32

    def prepare(self, engine: ContinuousThoughtEngine, lanes: list[Lane]) -> None:
        engine.checkpointing = self.options["checkpointing"]
        super().prepare(engine, lanes)

    def preflight(self, build: Build) -> list[str]:
        """What a step will take, in lines; chooses the batch size where that is asked.

        Raises:
            FractusError: it does not fit into the memory that is free.
        """
        world, (_, here) = ranks.world(), ranks.here()
        free = free_memory(self.device)
        # The processes of one machine have a GPU each, or all its memory together.
        free = ranks.least(free if self.device.type == "cuda" else free // here)
        sharded = self.options["parallel"] == "fsdp2" and world > 1
        gathered = whole_at_once(build) if sharded else 0

        @functools.cache
        def estimated(rows: int) -> Estimate:
            found = estimate(build, self.options, rows)
            return found.parted(world, gathered) if sharded else found

        rows, allowed = max(1, self.batch_size // world), SAFE * free
        found = estimated(rows)
        if self.options["auto_batch"] or found.worst > allowed:
            batch_size = world * largest_batch(lambda rows: estimated(rows).worst, allowed, rows)
            if not self.options["auto_batch"] or not batch_size:
                raise FractusError(_too_large(found, free, allowed, self.batch_size, batch_size))
            self.batch_size = self.options["batch_size"] = batch_size
            self.options["auto_batch"] = False  # a resumed run goes on with it
            rows = batch_size // world
            found = estimated(rows)
        each = f" for each of {world} processes" if world > 1 else ""
        return [f"memory on {self.device}, {rows:,} rows{each}:", *found.lines(free)]

    def _spread(self, objective: Objective) -> nn.Module:
        if ranks.world() == 1:
            return objective
        # Here, for it imports much.
        from fractus_trainers.parallel import Parallel

        self.parallel = Parallel(objective, self.options["parallel"], self.device)
        return self.parallel.module

    def _set_precision(self, precision: str) -> None:
        if self.options["parallel"] == "none":
            super()._set_precision(precision)
            return
        # Autocast alone makes the copies: gradients are shared out as the masters' are complete.
        self.bf16, self.half = precision == "bf16", None

    def _computing(self, *, last: bool) -> AbstractContextManager[None]:
        if self.parallel is None:
            return super()._computing(last=last)
        return self.parallel.computing(last=last)

    def _practise(
        self, lane: Lane, batch: Batch, state: EngineState, hidden: Tensor, *, last: bool
    ) -> Tensor:
        if self.parallel is not None:
            self.parallel.gather_heads()
        return super()._practise(lane, batch, state, hidden, last=last)

    def _noise(self) -> torch.Generator:
        return super()._noise() if self.parallel is None else self.parallel.noise(self.generator)

    def _compile_engine(self, engine: ContinuousThoughtEngine) -> None:
        # On a CPU how tokens reach their experts depends on their number, which ends a graph.
        # A block of fsdp2 has hooks around it, which stay as they are.
        whole = self.device.type == "cuda" and self.options["parallel"] != "fsdp2"
        engine.compile_blocks(whole=whole, cuda_graphs=self.options["cuda_graphs"])

    def _place(self, batch: Batch) -> Batch:
        if self.device.type == "cpu":
            return batch
        # From pinned memory, so that nothing waits for the copy.
        observations, targets = (
            tensor.pin_memory().to(self.device, non_blocking=True)
            for tensor in (batch.observations, batch.targets)
        )
        return Batch(observations, targets, batch.starts)

    def _forward(self, lane: Lane, batch: Batch, state: EngineState) -> Outcome:
        if self.options["cuda_graphs"]:
            torch.compiler.cudagraph_mark_step_begin()
        return super()._forward(lane, batch, state)

    def _carry(self, state: EngineState) -> EngineState:
        state = super()._carry(state)
        # What a recorded graph returned is overwritten when it is replayed.
        return state.clone() if self.options["cuda_graphs"] else state

    def _device_figures(self) -> dict[str, float]:
        if self.device.type == "cpu":
            return {}
        return {"device_memory_mb": torch.cuda.max_memory_allocated(self.device) / 1e6}


def _too_large(found: Estimate, free: int, allowed: float, asked: int, largest: int) -> str:
    advice = f"the largest that fits is --gpu1b.batch_size {largest}"
    if not largest:
        advice = "not even one row fits: try --gpu1b.checkpointing, another optimizer, or --preset"
    return (
        f"--gpu1b.batch_size {asked} needs {found.worst / 1e9:.3g} GB, and of {free / 1e9:.3g} GB "
        f"that are free {allowed / 1e9:.3g} can be used; {advice}"
    )


def _require_possible(options: Json) -> None:
    """Raises `FractusError` if this machine, or torch, cannot do what is asked."""
    if options["device"] == "cuda" and not torch.cuda.is_available():
        raise FractusError(
            "trainer gpu1b: there is no CUDA device; use one, or compute on the processor with "
            "--device cpu"
        )
    number, count = ranks.here()
    if options["device"] == "cuda" and count > 1 and number >= torch.cuda.device_count():
        raise FractusError(
            f"torchrun started {count} processes on a machine that has "
            f"{torch.cuda.device_count()} CUDA devices: start as many"
        )
    if options["parallel"] != "none" and options["pgsu"]:
        raise FractusError(
            f"--gpu1b.pgsu {options['pgsu']} needs --parallel none: blocks that change turns "
            "cannot be shared out"
        )
    if not options["cuda_graphs"]:
        return
    needs = {
        "--parallel none": options["parallel"] == "none",
        "--device cuda": options["device"] == "cuda",
        "--gpu1b.compile": options["compile"],
        # A recorded backward pass overwrites the gradients of the one before it.
        "--gpu1b.accumulation_steps 1": options["accumulation_steps"] == 1,
        "--gpu1b.ss_rate 0": options["ss_rate"] == 0,
        "--no-gpu1b.checkpointing": not options["checkpointing"],
    }
    for need, given in needs.items():
        if not given:
            raise FractusError(f"--gpu1b.cuda_graphs needs {need}")
