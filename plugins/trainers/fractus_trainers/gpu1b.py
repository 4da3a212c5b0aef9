"""The trainer `gpu1b`: a billion parameters on one GPU, or the same at a small size on a CPU."""

from __future__ import annotations

import functools

import torch

from fractus_core.api import (
    Batch,
    ContinuousThoughtEngine,
    EngineState,
    FractusError,
    Json,
    Lane,
)
from fractus_trainers.objective import Outcome
from fractus_trainers.online import OnlineTrainer
from fractus_trainers.preflight import Build, Estimate, estimate, free_memory, largest_batch

SAFE = 0.9
"""Part of the free memory that a batch is chosen to take; an allocator cannot use all of it."""


class Gpu1bTrainer(OnlineTrainer):
    """In bf16 on fp32 weights and state. Computes where it is told, and nowhere else."""

    name = "gpu1b"

    def __init__(self, options: Json, *, seed: int) -> None:
        _require_possible(options)
        super().__init__(options, seed=seed)
        self.device = torch.device(options["device"])
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")  # TF32, where it computes in fp32

    def prepare(self, engine: ContinuousThoughtEngine, lanes: list[Lane]) -> None:
        engine.checkpointing = self.options["checkpointing"]
        super().prepare(engine, lanes)

    def preflight(self, build: Build) -> list[str]:
        """What a step will take, in lines; chooses the batch size where that is asked.

        Raises:
            FractusError: it does not fit into the memory that is free.
        """
        free = free_memory(self.device)

        @functools.cache
        def estimated(batch_size: int) -> Estimate:
            return estimate(build, self.options, batch_size)

        found = estimated(self.batch_size)
        if self.options["auto_batch"] or found.worst > free:
            batch_size = largest_batch(
                lambda size: estimated(size).worst, SAFE * free, self.batch_size
            )
            if not self.options["auto_batch"] or not batch_size:
                raise FractusError(_too_large(found, free, self.batch_size, batch_size))
            self.batch_size = self.options["batch_size"] = batch_size
            self.options["auto_batch"] = False  # a resumed run goes on with it
            found = estimated(batch_size)
        return [f"memory on {self.device}, {self.batch_size:,} rows:", *found.lines(free)]

    def _compile_engine(self, engine: ContinuousThoughtEngine) -> None:
        # On a CPU how tokens reach their experts depends on their number, which ends a graph.
        engine.compile_blocks(
            whole=self.device.type == "cuda", cuda_graphs=self.options["cuda_graphs"]
        )

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


def _too_large(found: Estimate, free: int, asked: int, largest: int) -> str:
    advice = f"the largest that fits is --gpu1b.batch_size {largest}"
    if not largest:
        advice = "not even one row fits: try --gpu1b.checkpointing, another optimizer, or --preset"
    return (
        f"--gpu1b.batch_size {asked} needs {found.worst / 1e9:.3g} GB, and {free / 1e9:.3g} GB are "
        f"free; {advice}"
    )


def _require_possible(options: Json) -> None:
    """Raises `FractusError` if this machine, or torch, cannot do what is asked."""
    if options["device"] == "cuda" and not torch.cuda.is_available():
        raise FractusError(
            "trainer gpu1b: there is no CUDA device; use one, or compute on the processor with "
            "--device cpu"
        )
    if not options["cuda_graphs"]:
        return
    needs = {
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
