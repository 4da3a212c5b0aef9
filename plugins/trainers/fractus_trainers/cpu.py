"""The trainer `cpu`: online, chunk by chunk, with the state carried from each to the next."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from fractus_core.api import (
    Batch,
    ContinuousThoughtEngine,
    EngineState,
    FractusError,
    Json,
    Lane,
    Step,
    take_turns,
)
from fractus_trainers.allocator import keep_freed_memory
from fractus_trainers.half import HalfWeights
from fractus_trainers.objective import Objective, Outcome
from fractus_trainers.optimizers import DEFAULT_LR, Optimizers, gradient_norm, make_optimizers
from fractus_trainers.schedule import warmup_stable_decay

PROBE_REPEATS = 4
"""Timings of each precision, of which the shortest counts."""


class CpuTrainer:
    """Truncated backpropagation through time: gradients stop at the start of each chunk.

    Each optimizer step reads `accumulation_steps` chunks of one lane; lanes take turns, as their
    shares say.
    """

    def __init__(self, options: Json, *, seed: int) -> None:
        self.options = dict(options)
        self.options["threads"] = options["threads"] or os.cpu_count() or 1
        self.options["lr"] = options["lr"] or DEFAULT_LR[options["optimizer"]]
        self.batch_size: int = options["batch_size"]
        self.chunk_len: int = options["chunk_len"]
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = 0
        torch.set_num_threads(self.options["threads"])
        keep_freed_memory()

    def prepare(self, engine: ContinuousThoughtEngine, lanes: list[Lane]) -> None:
        self.round = take_turns(lanes)
        self.index = {lane.name: index for index, lane in enumerate(lanes)}
        self.objective = Objective(engine, [lane.frontend for lane in lanes], self.options).train()
        self.optimizers: Optimizers = make_optimizers(
            self.options["optimizer"],
            [self.objective],
            lr=self.options["lr"],
            weight_decay=self.options["weight_decay"],
        )
        if self.options["precision"] == "auto":
            self.options["precision"] = self._faster_precision(lanes[0])
        self._set_precision(self.options["precision"])
        if self.options["compile"]:
            engine.compile_blocks()
            begun = time.perf_counter()
            for lane in lanes:
                self._rehearse(lane)
            self.options["compile_seconds"] = round(time.perf_counter() - begun, 1)

    def train(self, progress: Callable[[], float]) -> Iterator[Step]:
        while True:
            yield self._step(self.round[self.steps % len(self.round)], progress())

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizers": self.optimizers.state_dict(),
            "generator": self.generator.get_state(),
            "steps": self.steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizers.load_state_dict(state["optimizers"])
        self.generator.set_state(state["generator"])
        self.steps = state["steps"]

    # -------------------------------------------------------------------------------- one step

    def _step(self, lane: Lane, progress: float) -> Step:
        if self.half is not None:
            self.half.refresh()
        chunks = [self._read_chunk(lane) for _ in range(self.options["accumulation_steps"])]
        norm = gradient_norm(self.optimizers.parameters)
        _require_finite("gradient norm", float(norm))
        if self.options["clip"]:
            nn.utils.clip_grads_with_norm_(
                self.optimizers.parameters, self.options["clip"], norm, foreach=True
            )
        lr = self.optimizers.step(
            warmup_stable_decay(
                self.steps,
                progress,
                warmup_steps=self.options["warmup_steps"],
                decay_from=self.options["decay_from"],
                final=self.options["final_lr"],
            )
        )
        self.steps += 1
        return Step(
            lane=lane.name,
            tokens=sum(chunk.tokens for chunk in chunks),
            loss=statistics.fmean(chunk.loss.item() for chunk in chunks),
            figures={
                "lr": lr,
                "gradient_norm": float(norm),
                "lb": statistics.fmean(chunk.lb.item() for chunk in chunks),
            },
        )

    def _read_chunk(self, lane: Lane) -> Outcome:
        """Read the lane's next chunk and add its gradients to the parameters'."""
        batch = next(lane.source)
        state = lane.state.reset(rows=batch.starts | self._random_rows(len(batch.starts)))
        outcome = self._forward(lane, batch, state)
        _require_finite("loss", outcome.loss.item())
        self._backward(outcome.objective / self.options["accumulation_steps"])
        lane.state = outcome.state.detach()
        return outcome

    def _random_rows(self, rows: int) -> Tensor:
        """Streams that begin anew by chance: without it a cold stream is never practised."""
        probability: float = self.options["reset_probability"]
        return torch.rand(rows, generator=self.generator) < probability

    def _forward(self, lane: Lane, batch: Batch, state: EngineState) -> Outcome:
        forward = self.objective if self.half is None else self.half
        outcome: Outcome = forward(self.index[lane.name], batch, state, self.half is not None)
        return outcome

    def _backward(self, objective: Tensor) -> None:
        objective.backward()
        if self.half is not None:
            self.half.collect()

    # ------------------------------------------------------------------------------ rehearsals

    def _set_precision(self, precision: str) -> None:
        self.half = HalfWeights(self.objective) if precision == "bf16" else None

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

    def _rehearse(self, lane: Lane) -> None:
        """Forward and backward over the next chunk. Nothing learns or moves."""
        cursor = lane.source.cursor()
        batch = next(lane.source)
        lane.source.seek(cursor)
        self._backward(self._forward(lane, batch, lane.state).objective)
        for parameter in self.optimizers.parameters:
            parameter.grad = None


def _require_finite(what: str, value: float) -> None:
    if not math.isfinite(value):
        raise FractusError(f"the {what} is {value}: lower --cpu.lr or raise --cpu.warmup_steps")
