"""A run: the loop around a trainer, with its budget, metrics, evaluations and checkpoints."""

from __future__ import annotations

import dataclasses
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import psutil
import torch

from fractus_core.brain.directory import BrainDirectory
from fractus_core.brain.lane import Base, BrainLane
from fractus_core.contract import Frontend, Lane, Preflight, Step, Trainer
from fractus_core.engine import ContinuousThoughtEngine, EngineState, Stream
from fractus_core.errors import FractusError
from fractus_core.plugins.lifecycle import Lifecycle
from fractus_core.plugins.registry import Registry
from fractus_core.runs import evaluation, ranks
from fractus_core.runs.assembly import (
    environment,
    make_model,
    make_trainer,
    newest_checkpoint,
    open_source,
    with_fingerprints,
)
from fractus_core.runs.budget import Budget, Spent, duration
from fractus_core.runs.checkpoint import Checkpoint
from fractus_core.runs.config import RunConfig
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.files import write_json
from fractus_core.runs.interrupt import Interruption
from fractus_core.runs.metrics import MetricsLog
from fractus_core.runs.model import Model, eval_mode
from fractus_core.runs.reporter import Reporter
from fractus_core.runs.rows import OwnRows, all_rows, own_rows
from fractus_core.runs.sharded import whole_tree

EMA_DECAY = 0.98


@dataclass(slots=True)
class Averages:
    """Of one lane's training loss: an exponential one, and one of the steps since the last line."""

    ema: float | None = None
    window: float = 0.0
    steps: int = 0

    def add(self, loss: float) -> None:
        self.ema = loss if self.ema is None else EMA_DECAY * self.ema + (1 - EMA_DECAY) * loss
        self.window += loss
        self.steps += 1

    def pop_window(self) -> float:
        mean = self.window / self.steps
        self.window, self.steps = 0.0, 0
        return mean


class Run:
    """Made by `start` or `resume`; then `execute` trains until the budget is spent."""

    def __init__(
        self,
        directory: RunDirectory,
        config: RunConfig,
        model: Model,
        trainer: Trainer,
        lanes: list[Lane],
        lifecycle: Lifecycle,
        fresh: Callable[[], Model],
    ) -> None:
        self.directory, self.config, self.model = directory, config, model
        self.trainer, self.lanes, self.lifecycle = trainer, lanes, lifecycle
        self._fresh = fresh
        """Makes the model anew, as it began."""
        self.brain: BrainLane | None = None
        self.spent = Spent()
        self.averages = {lane.name: Averages() for lane in lanes}
        self.metrics_size = 0
        self.resume_from = directory.path
        """What to give to --resume: the run itself, or what it is a part of."""
        self.saved: int | None = None
        """The step of the newest checkpoint."""
        self.forecast: list[str] = []
        """What the trainer foretold of its memory."""
        self._begun = Spent()
        """What was spent before this process."""

    # ---------------------------------------------------------------------------------- making

    @classmethod
    def start(cls, registry: Registry, directory: RunDirectory, config: RunConfig) -> Self:
        """A new run, whose directory is made here: nothing is written if anything does not fit."""
        ranks.first(directory.require_absent)
        run = cls.rehearse(registry, directory, config)
        if run.config.brain is not None:
            path = str(directory.path.resolve())
            run.brain = BrainLane.join(run.config.brain, run.config, path, run.model)
            run.config = dataclasses.replace(run.config, brain=run.brain.link)
        ranks.first(lambda: directory.create(run.config))
        return run

    @classmethod
    def rehearse(cls, registry: Registry, directory: RunDirectory, config: RunConfig) -> Self:
        """A new run in memory alone: its trainer may be tried, nothing is written."""
        if config.brain is not None:
            BrainDirectory(Path(config.brain.directory)).require_fit(
                config.engine, config.brain.rule
            )
        run = cls.assemble(registry, directory, config)
        frontends = tuple(
            with_fingerprints(
                plugged, train=lane.source, validation=run._open_validation(plugged.name)
            )
            for plugged, lane in zip(config.frontends, run.lanes, strict=True)
        )
        run.config = dataclasses.replace(
            config,
            frontends=frontends,
            trainer=dataclasses.replace(config.trainer, options=dict(run.trainer.options)),
            environment=environment(),
        )
        return run

    @classmethod
    def resume(
        cls,
        registry: Registry,
        directory: RunDirectory,
        *,
        budget: Budget | None = None,
        data: Mapping[str, str] | None = None,
        brain: Path | None = None,
        allow_previous: bool = False,
    ) -> Self:
        """Go on from the newest checkpoint, or from the start if there is none.

        Args:
            budget: replaces the run's, to extend it.
            data: where front-ends' data lies now.
            brain: where the brain lies now.
            allow_previous: use the newest checkpoint that is not damaged, and drop later ones.

        Raises:
            FractusError: if nothing is left to do, the data has changed, or files are damaged.
        """
        config = directory.read_config()
        found = newest_checkpoint(directory, allow_previous=allow_previous)
        _require_one_directory(directory, found[0] if found is not None else "none")
        if budget is not None:
            config = dataclasses.replace(config, budget=budget)
        config = config.moved(data or {}, brain)
        if found is not None and directory.summary_file.exists():
            spent = Spent(**found[1].info["spent"])
            if config.budget.progress(spent) >= 1:
                raise FractusError(
                    f"{directory.path} is finished: {spent.steps:,} steps, {spent.tokens:,} tokens "
                    f"in {duration(spent.seconds)}; extend it with a larger --steps, --tokens or "
                    "--minutes"
                )
        run = cls.assemble(registry, directory, config)
        if config.brain is not None:
            run.brain = BrainLane.rejoin(config.brain, config)
        ranks.first(lambda: directory.checkpoints.rewind(found[0] if found is not None else None))
        if found is not None:
            run.restore(found[1])
        elif run.brain is not None:
            run.brain.take(run.model, run.spent.tokens)

        def begin() -> None:
            directory.summary_file.unlink(missing_ok=True)
            write_json(directory.config_file, config.to_json())

        ranks.first(begin)
        return run

    @classmethod
    def assemble(cls, registry: Registry, directory: RunDirectory, config: RunConfig) -> Self:
        """A run in memory alone, with fresh weights."""
        trainer = make_trainer(registry, config)

        def fresh() -> Model:
            frontends = {plugged.name: plugged for plugged in config.frontends}
            return make_model(registry, config.engine, frontends, config.seed)

        def parts() -> tuple[ContinuousThoughtEngine, list[Frontend]]:
            made = fresh()
            return made.engine, list(made.frontends.values())

        forecast = trainer.preflight(parts) if isinstance(trainer, Preflight) else []
        model = fresh()
        lanes = []
        for plugged in config.frontends:
            frontend = model.frontends[plugged.name]
            source = open_source(
                frontend,
                plugged,
                "train",
                batch_size=trainer.batch_size,
                chunk_len=trainer.chunk_len,
                seed=config.seed,
                shard=config.shard,
            )
            if ranks.world() > 1:
                source = OwnRows(source)
            state = model.engine.initial_state(source.rows)
            lanes.append(Lane(plugged.name, frontend, source, state, plugged.share))
        trainer.prepare(model.engine, lanes)
        run = cls(directory, config, model, trainer, lanes, registry.hook, fresh)
        run.forecast = forecast
        return run

    # -------------------------------------------------------------------------------- the loop

    def execute(self, reporter: Reporter, *, tensorboard: bool = False) -> dict[str, Any] | None:
        """Train until the budget is spent; returns the summary, or None if interrupted.

        Raises:
            FractusError: if training or saving fails; the newest checkpoint stays good.
        """
        self._begun = dataclasses.replace(self.spent)
        with self._opened_log(tensorboard) as self._log, Interruption() as interruption:
            try:
                with ranks.watched():
                    self._train(reporter, interruption)
                    if interruption.requested is None:
                        return self._finish(reporter, interruption)
            except KeyboardInterrupt:  # in the last evaluation, or a second signal
                if interruption.noticed is None and ranks.is_first():
                    raise
            except FractusError as error:
                raise type(error)(f"{error}; {self.resume_hint()}") from error
            finally:
                if self.brain is not None:
                    self.brain.leave()
            return None

    def _opened_log(self, tensorboard: bool) -> AbstractContextManager[MetricsLog | None]:
        """None but on rank 0, which tells plugins too."""
        if not ranks.is_first():
            return nullcontext()
        self.lifecycle.fractus_run_start(self.directory.path, self.config.to_json())
        board = self.directory.path / "tensorboard" if tensorboard else None
        return MetricsLog(self.directory.metrics_file, size=self.metrics_size, tensorboard=board)

    def _write_line(self, kind: str, figures: dict[str, Any], wall: dict[str, float]) -> None:
        if self._log is not None:
            self._log.write(kind, self.spent.steps, figures, wall)

    def _train(self, reporter: Reporter, interruption: Interruption) -> None:
        if self._exchange_due() or self._exchange_begun():
            self._exchange()
        steps = self.trainer.train(lambda: min(1.0, self.config.budget.progress(self.spent)))
        cadence, last_saved = self.config.checkpoint_every, (self.spent.steps, time.monotonic())
        while self.config.budget.progress(self.spent) < 1 and interruption.requested is None:
            begun = time.perf_counter()
            try:
                step = next(steps)
            except FractusError as error:
                raise FractusError(f"step {self.spent.steps + 1}: {error}") from error
            self.spent.seconds += time.perf_counter() - begun
            self._account(step, reporter)
            if self.spent.steps % self.config.eval_every == 0:
                self._evaluate(reporter, limit=self.config.eval_tokens)
            if self._exchange_due():
                self._exchange()
                last_saved = (self.spent.steps, time.monotonic())
            (self.spent.seconds, seconds_since), asked = ranks.agree(
                self.spent.seconds,
                time.monotonic() - last_saved[1],
                asked=interruption.noticed is not None or ranks.orphaned(),
            )
            if asked and interruption.requested is None:
                interruption.requested = interruption.noticed or signal.SIGTERM
            if cadence.due(steps=self.spent.steps - last_saved[0], seconds=seconds_since):
                self.save()
                last_saved = (self.spent.steps, time.monotonic())
        self.save()
        if interruption.requested is not None:
            self._exchange()

    def _exchange_due(self) -> bool:
        """Not at the end: there the run's own weights are evaluated first."""
        return (
            self.brain is not None
            and self.spent.steps % self.brain.link.sync_every == 0
            and self.config.budget.progress(self.spent) < 1
        )

    def _exchange_begun(self) -> bool:
        """Whether the process that saved the newest checkpoint gave to the brain then."""
        return (
            self.brain is not None
            and self.saved is not None
            and self.config.budget.progress(self.spent) < 1
            and self.brain.has_given()  # which reads the brain
        )

    def _exchange(self) -> None:
        if self.brain is None or self.brain.base.tokens == self.spent.tokens:
            return
        begun = time.perf_counter()
        self.save()  # first: see `BrainLane`
        figures = self.brain.exchange(self.model, str(self.directory.path.resolve()), self.spent)
        wall = self._wall() | {"exchange_seconds": round(time.perf_counter() - begun, 3)}
        self._write_line("exchange", {"tokens": self.spent.tokens} | figures, wall)

    def _account(self, step: Step, reporter: Reporter) -> None:
        self.spent.steps += 1
        self.spent.tokens += step.tokens
        averages = self.averages[step.lane]
        averages.add(step.loss)
        if ranks.is_first():
            self.lifecycle.fractus_step(self.directory.path, self.spent.steps, step)
        if averages.steps == self.config.log_every:
            figures = {
                "tokens": self.spent.tokens,
                "lane": step.lane,
                "loss": averages.pop_window(),
                "loss_ema": averages.ema,
                **step.figures,
            }
            self._write_line("train", figures, self._wall())
        reporter.step(
            self.spent,
            self.config.budget.progress(self.spent),
            loss=averages.ema or step.loss,
            rate=self.tokens_per_second(),
        )

    def tokens_per_second(self) -> float:
        """Since this process started; what it resumed from is not counted."""
        seconds = self.spent.seconds - self._begun.seconds
        return (self.spent.tokens - self._begun.tokens) / seconds if seconds else 0.0

    def _wall(self) -> dict[str, float]:
        return {
            "seconds": round(self.spent.seconds, 3),
            "tokens_per_second": round(self.tokens_per_second(), 1),
            "memory_mb": round(psutil.Process().memory_info().rss / 1e6, 1),
        }

    # ----------------------------------------------------------------------------- evaluations

    def _open_validation(self, name: str) -> Any:
        plugged = next(f for f in self.config.frontends if f.name == name)
        return open_source(
            self.model.frontends[name],
            plugged,
            "validation",
            batch_size=evaluation.ROWS,
            chunk_len=evaluation.CHUNK,
            seed=self.config.seed,
        )

    def _evaluate(
        self,
        reporter: Reporter,
        *,
        limit: int | None,
        advance: Callable[[int], None] = lambda vectors: None,
    ) -> dict[str, dict[str, Any]]:
        """Every front-end's figures by its name, written to the log and shown."""
        model = self._whole_model()

        def evaluate() -> dict[str, dict[str, Any]]:
            # What a trainer has compiled is for its own shapes.
            with torch.compiler.set_stance("force_eager"):
                return self._evaluate_lanes(model, reporter, limit, advance)

        return ranks.first(evaluate)

    def _whole_model(self) -> Model:
        """On rank 0, with all weights there, whatever has become of them in training."""
        if not self.model.is_sharded():
            return self.model
        trees = whole_tree(self.model.trees())
        if not ranks.is_first():
            return self.model
        with torch.random.fork_rng(devices=[]):
            model = self._fresh()
        model.load(trees)
        for _, module in model.modules():
            module.to(self.model.engine.log_decay.device)
        return model

    def _evaluate_lanes(
        self,
        model: Model,
        reporter: Reporter,
        limit: int | None,
        advance: Callable[[int], None],
    ) -> dict[str, dict[str, Any]]:
        results = {}
        for lane in self.lanes:
            frontend = model.frontends[lane.name]
            figures = evaluation.evaluate(
                model.engine,
                frontend,
                lambda name=lane.name: self._open_validation(name),  # type: ignore[misc]
                limit=limit,
                advance=advance,
            )
            stream = Stream(model.engine, frontend)
            pictures = self.directory.path / "pictures" / str(self.spent.steps)
            with (
                torch.no_grad(),
                torch.random.fork_rng(devices=[]),
                eval_mode(model.engine, frontend),
            ):
                source = self._open_validation(lane.name)
                sample = frontend.illustrate(stream, source, pictures, self.config.seed)
            line = {
                "tokens": self.spent.tokens,
                "frontend": lane.name,
                "evaluation": figures,
                "sample": sample,
            }
            self._write_line("eval", line, self._wall())
            reporter.evaluation(lane.name, self.spent, figures, sample)
            results[lane.name] = figures
        return results

    def _finish(self, reporter: Reporter, interruption: Interruption) -> dict[str, Any]:
        """The last evaluation, over all held-out data, and `summary.json`."""

        read = 0
        reporter.evaluating(read)

        def advance(vectors: int) -> None:
            nonlocal read
            if interruption.noticed is not None:  # all is saved: it can be made again
                raise KeyboardInterrupt
            read += vectors
            reporter.evaluating(read)

        results = self._evaluate(reporter, limit=None, advance=advance)
        self._exchange()  # after its own figures, and before it counts as finished
        summary = {
            "tokens": self.spent.tokens,
            "steps": self.spent.steps,
            "seconds": round(self.spent.seconds, 3),
            "tokens_per_second": round(self.spent.tokens / self.spent.seconds, 1),
            "frontends": results,
        }

        def end() -> None:
            write_json(self.directory.summary_file, summary)
            self.lifecycle.fractus_run_end(self.directory.path, summary)

        ranks.first(end)
        return summary

    # ----------------------------------------------------------------------------- checkpoints

    def save(self) -> None:
        """Write a checkpoint of this moment, unless the newest one is."""
        if self.saved == self.spent.steps:
            return
        info: dict[str, Any] = {
            "config": self.config.identity(),
            "spent": dataclasses.asdict(self.spent),
            "averages": {name: dataclasses.asdict(a) for name, a in self.averages.items()},
            "cursors": {lane.name: lane.source.cursor() for lane in self.lanes},
        }
        trees = self.trees()
        if self.brain is not None:
            info["base"] = {"number": self.brain.base.number, "tokens": self.brain.base.tokens}
            trees["base"] = self.brain.base.weights

        def write() -> None:
            assert self._log is not None
            info["metrics_size"] = self._log.size()
            self.directory.checkpoints.save(self.spent.tokens, Checkpoint(info, trees))

        ranks.first(write)
        self.saved = self.spent.steps

    def trees(self) -> dict[str, Any]:
        """What a checkpoint holds of model, trainer, generator and streams, by name.

        Of several ranks all must ask; what they have parts of is whole on rank 0 alone.
        """
        parts = self.model.trees() | {
            "trainer": self.trainer.state_dict(),
            "rng": {"torch": torch.get_rng_state()},
            **{f"stream-{lane.name}": all_rows(lane.state).state_dict() for lane in self.lanes},
        }
        return parts if ranks.world() == 1 else whole_tree(parts)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Be what the run was at `checkpoint`."""
        info, trees = checkpoint.info, checkpoint.trees
        self.spent = Spent(**info["spent"])
        self.averages = {name: Averages(**a) for name, a in info["averages"].items()}
        self.metrics_size = info["metrics_size"]
        self.model.load(trees)
        if self.brain is not None:
            self.brain.base = Base(**info["base"], weights=trees["base"])
        self.trainer.load_state_dict(trees["trainer"])
        torch.set_rng_state(trees["rng"]["torch"])
        for lane in self.lanes:
            state = EngineState.from_state_dict(trees[f"stream-{lane.name}"])
            lane.state = own_rows(state).to(lane.state.device)
            lane.source.seek(info["cursors"][lane.name])
        self.saved = self.spent.steps

    def resume_hint(self) -> str:
        """What is safe, and how to go on from it."""
        command = f"{ranks.command()} run --resume {shlex.quote(str(self.resume_from))}"
        if self.saved is None:
            return f"there is no checkpoint yet; begin again with {command}"
        return f"the checkpoint of step {self.saved:,} is good; go on with {command}"


def _require_one_directory(directory: RunDirectory, newest: str) -> None:
    """Raises `FractusError` if ranks on other machines find another checkpoint."""
    if (expected := ranks.first(lambda: newest)) != newest:
        raise FractusError(
            f"rank {ranks.rank()} finds the checkpoint {newest} in {directory.path}, rank 0 "
            f"{expected}: all machines must see one run directory"
        )
