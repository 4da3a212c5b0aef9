"""The loop of the built-in trainers: chunk by chunk, the state carried from each to the next."""

from __future__ import annotations

import dataclasses
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fractus_core.api import (
    Batch,
    ContinuousThoughtEngine,
    EngineState,
    FractusError,
    Json,
    Lane,
    Resampler,
    Step,
    ranks,
    take_turns,
)
from fractus_trainers.compiled import Compilations
from fractus_trainers.half import HalfWeights
from fractus_trainers.objective import Objective, Outcome
from fractus_trainers.optimizers import DEFAULT_LR, Optimizers, gradient_norm, make_optimizers
from fractus_trainers.schedule import warmup_stable_decay
from fractus_trainers.turns import give_turns


@dataclass(frozen=True, slots=True)
class Reading:
    """What is left of a chunk once it has been read; scalars on the trainer's device."""

    tokens: int
    loss: Tensor
    lb: Tensor
    sampled_loss: Tensor | None
    """On observations of which some are the model's own."""


class OnlineTrainer:
    """Truncated backpropagation through time: gradients stop at the start of each chunk.

    Each optimizer step reads `accumulation_steps` chunks of one lane; lanes take turns, as their
    shares say. Subclasses say where, in what precision, and what is compiled.
    """

    name: ClassVar[str]
    """As on the command line."""
    device = torch.device("cpu")

    def __init__(self, options: Json, *, seed: int) -> None:
        self.options = dict(options)
        self.options["threads"] = options["threads"] or os.cpu_count() or 1
        self.options["lr"] = options["lr"] or DEFAULT_LR[options["optimizer"]]
        self.batch_size: int = options["batch_size"]
        self.chunk_len: int = options["chunk_len"]
        self.generator = torch.Generator().manual_seed(seed)
        self.steps = 0
        self.compilations: Compilations | None = None
        torch.set_num_threads(self.options["threads"])

    def prepare(self, engine: ContinuousThoughtEngine, lanes: list[Lane]) -> None:
        self._require_fit(engine, lanes)
        self.engine = engine
        self.round = take_turns(lanes)
        self.index = {lane.name: index for index, lane in enumerate(lanes)}
        self.objective = Objective(engine, [lane.frontend for lane in lanes], self.options).train()
        self.objective.to(self.device)
        self.module = self._spread(self.objective)
        for lane in lanes:
            lane.state = lane.state.to(self.device)
        self.optimizers: Optimizers = make_optimizers(
            self.options["optimizer"],
            [self.objective],
            lr=self.options["lr"],
            weight_decay=self.options["weight_decay"],
            momentum=self.options["momentum"],
        )
        self.options["precision"] = self._choose_precision(lanes[0])
        self._set_precision(self.options["precision"])
        if self.options["compile"]:
            self._compile(lanes)

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

    # ------------------------------------------------------------------- what subclasses decide

    def _spread(self, objective: Objective) -> nn.Module:
        """What computes it, before there is an optimizer of its parameters."""
        return objective

    def _choose_precision(self, lane: Lane) -> str:
        """`fp32` or `bf16`."""
        precision: str = self.options["precision"]
        return precision

    def _compile_engine(self, engine: ContinuousThoughtEngine) -> None:
        engine.compile_blocks()

    def _place(self, batch: Batch) -> Batch:
        """On the device, but for `starts`, which steers the loop."""
        return batch

    def _carry(self, state: EngineState) -> EngineState:
        """What a lane goes on with."""
        return state.detach()

    def _device_figures(self) -> dict[str, float]:
        """Further columns of the metrics."""
        return {}

    # -------------------------------------------------------------------------------- one step

    def _step(self, lane: Lane, progress: float) -> Step:
        if self.options["pgsu"]:
            # By rounds, or some lanes would never see some blocks learn.
            turn = self.steps // len(self.round)
            give_turns(list(self.engine.blocks), turn, self.options["pgsu"])
        if self.half is not None:
            self.half.refresh()
        sampling = self._draw() < self.options["ss_rate"] if self.options["ss_rate"] else False
        n = self.options["accumulation_steps"]
        chunks = [self._read_chunk(lane, sampling, last=i == n - 1) for i in range(n)]
        norm = gradient_norm(self.optimizers.parameters)
        told = self._read_figures(norm, chunks)
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
        if self.compilations is not None:
            told["recompiles"] = self.compilations.since()
        return Step(
            lane=lane.name,
            tokens=ranks.world() * sum(chunk.tokens for chunk in chunks),
            loss=told.pop("loss"),
            figures={"lr": lr, **told, **self._device_figures()},
        )

    def _read_chunk(self, lane: Lane, sampling: bool, *, last: bool) -> Reading:
        """Read the lane's next chunk and add its gradients to the parameters'."""
        batch = self._place(next(lane.source))
        state = lane.state.reset(rows=batch.starts | self._random_rows(len(batch.starts)))
        outcome = self._learn(lane, batch, state, last=last and not sampling)
        lane.state = self._carry(outcome.state)
        sampled_loss = None
        if sampling:
            sampled_loss = self._practise(lane, batch, state, outcome.hidden, last=last)
        return Reading(outcome.tokens, outcome.loss, outcome.lb, sampled_loss)

    def _learn(
        self, lane: Lane, batch: Batch, state: EngineState, weight: float = 1.0, *, last: bool
    ) -> Outcome:
        """Forward and backward over one chunk; `last` in a step or not."""
        with self._computing(last=last):
            outcome = self._forward(lane, batch, state)
            (weight * outcome.objective / self.options["accumulation_steps"]).backward()
        return outcome

    def _forward(self, lane: Lane, batch: Batch, state: EngineState) -> Outcome:
        outcome: Outcome = self.module(self.index[lane.name], batch, state, self.bf16)
        return outcome

    def _practise(
        self, lane: Lane, batch: Batch, state: EngineState, hidden: Tensor, *, last: bool
    ) -> Tensor:
        """The chunk once more, from the same state, with some of the model's own answers to it.

        (Scheduled sampling, Bengio et al., arXiv 1506.03099; both passes make one step.)
        """
        assert isinstance(lane.frontend, Resampler)
        observations = lane.frontend.resample(
            batch.observations,
            hidden,
            probability=self.options["ss_probability"],
            temperature=self.options["ss_temperature"],
            generator=self._noise(),
        )
        mixed = dataclasses.replace(batch, observations=observations)
        return self._learn(lane, mixed, state, self.options["ss_weight"], last=last).loss

    def _computing(self, *, last: bool) -> AbstractContextManager[None]:
        """For a forward and a backward pass, the `last` of a step or not."""
        return nullcontext() if self.half is None else self.half.in_place()

    def _noise(self) -> torch.Generator:
        """For what is drawn for each row."""
        return self.generator

    def _random_rows(self, rows: int) -> Tensor:
        """Streams that begin anew by chance: without it a cold stream is never practised."""
        probability: float = self.options["reset_probability"]
        return ranks.own(torch.rand(ranks.world() * rows, generator=self.generator) < probability)

    def _draw(self) -> float:
        return float(torch.rand((), generator=self.generator))

    def _read_figures(self, norm: Tensor, chunks: list[Reading]) -> dict[str, float]:
        """All at once, since a device must be waited for each time. Raises `FractusError`."""
        sampled = [chunk.sampled_loss for chunk in chunks if chunk.sampled_loss is not None]
        losses = [chunk.loss for chunk in chunks]
        told = torch.stack([norm, *losses, *(chunk.lb for chunk in chunks), *sampled])
        values = ranks.mean(told).tolist()
        n = len(chunks)
        figures = {
            "loss": statistics.fmean(values[1 : 1 + n]),
            "gradient_norm": values[0],
            "lb": statistics.fmean(values[1 + n : 1 + 2 * n]),
        }
        if sampled:
            figures["ss_loss"] = statistics.fmean(values[1 + 2 * n :])
        for name, value in figures.items():
            if not math.isfinite(value):
                raise FractusError(
                    f"the {name.replace('_', ' ')} is {value}: lower --{self.name}.lr or raise "
                    f"--{self.name}.warmup_steps"
                )
        return figures

    # ------------------------------------------------------------------------- before the first

    def _require_fit(self, engine: ContinuousThoughtEngine, lanes: list[Lane]) -> None:
        """Raises `FractusError` if options ask for what engine or front-ends cannot do."""
        if self.options["pgsu"] > len(engine.blocks):
            raise FractusError(
                f"--{self.name}.pgsu {self.options['pgsu']}: the engine has {len(engine.blocks)} "
                "blocks; 0 lets all of them learn in every step"
            )
        for lane in lanes:
            if self.options["ss_rate"] and not isinstance(lane.frontend, Resampler):
                raise FractusError(
                    f"--{self.name}.ss_rate {self.options['ss_rate']}: the observations of "
                    f"front-end {lane.name!r} are not answers, so none can be the model's own; "
                    "leave it out"
                )

    def _set_precision(self, precision: str) -> None:
        self.bf16 = precision == "bf16"
        self.half = HalfWeights(self.objective) if self.bf16 else None

    def _compile(self, lanes: list[Lane]) -> None:
        """Compile, now rather than within the budget."""
        self.compilations = Compilations()
        begun = time.perf_counter()
        self._compile_engine(self.engine)
        for lane in lanes:
            self._rehearse(lane)
        self.options["compile_seconds"] = round(time.perf_counter() - begun, 1)
        self.options["compile_graphs"] = self.compilations.since()
        self.options["compile_breaks"] = self.compilations.breaks()
        self.compilations = Compilations()

    def _rehearse(self, lane: Lane) -> None:
        """Forward and backward over the next chunk. Nothing learns or moves."""
        cursor = lane.source.cursor()
        batch = self._place(next(lane.source))
        lane.source.seek(cursor)
        self._learn(lane, batch, lane.state, last=True)
        for parameter in self.optimizers.parameters:
            parameter.grad = None
