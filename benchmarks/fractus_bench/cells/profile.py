"""Where the time of a training step goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from torch import nn

from fractus_bench.records import Measured, Row
from fractus_bench.timing import spread
from fractus_bench.training import MIDDLE, RandomTokens, make_model, make_trainer
from fractus_core.engine import EngineConfig
from fractus_trainers.optimizers import gradient_norm

BATCH, CHUNK = 8, 32
WARMUP = 2
P = ParamSpec("P")
R = TypeVar("R")


class Stopwatch:
    """Seconds by part, summed until `take`."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._seconds[name] += time.perf_counter() - begun

    def watched(self, call: Callable[P, R], name: str) -> Callable[P, R]:
        """`call`, and each of its calls counts as a part."""

        def counted(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.part(name):
                return call(*args, **kwargs)

        return counted

    def take(self) -> dict[str, float]:
        taken, self._seconds = dict(self._seconds), defaultdict(float)
        return taken


def profile(*, repeats: int, vocabulary: int, optimizer: str) -> Measured:
    """Forward, backward and optimizer of one chunk; the forward pass once more, by part."""
    engine, head = make_model(vocabulary, EngineConfig(**MIDDLE))
    source = RandomTokens(vocabulary, BATCH, CHUNK)
    trainer, lane = make_trainer(
        engine, head, source, optimizer=optimizer, batch_size=BATCH, chunk_len=CHUNK
    )
    watch = Stopwatch()
    for block in engine.layers:
        for part in ("attention", "phases", "experts"):
            module = getattr(block, part)
            module.forward = watch.watched(module.forward, f"forward: {part}")
    head.embed = watch.watched(head.embed, "forward: embedding")  # type: ignore[method-assign]
    head.score = watch.watched(head.score, "forward: head")  # type: ignore[method-assign]

    samples: list[dict[str, float]] = []
    for _ in range(WARMUP + repeats):
        batch = next(lane.source)
        with watch.part("forward"):
            outcome = trainer._forward(lane, batch, lane.state)
        with watch.part("backward"):
            outcome.objective.backward()
        with watch.part("optimizer"):
            norm = gradient_norm(trainer.optimizers.parameters)
            nn.utils.clip_grads_with_norm_(trainer.optimizers.parameters, 1.0, norm, foreach=True)
            trainer.optimizers.step(1.0)
        lane.state = outcome.state.detach()
        samples.append(watch.take())
    return Measured(_rows(samples[WARMUP:]), {"vocabulary": vocabulary, "optimizer": optimizer})


def _rows(samples: list[dict[str, float]]) -> list[Row]:
    parts = [p for p in samples[0] if p.startswith("forward: ")]
    for sample in samples:
        rest = sample["forward"] - sum(sample[p] for p in parts)
        sample["forward: norms, shifts and the rest"] = rest
    whole = ["forward", "backward", "optimizer"]
    names = ["forward", *parts, "forward: norms, shifts and the rest", "backward", "optimizer"]
    rows = []
    for name in names:
        shares = [100 * s[name] / sum(s[w] for w in whole) for s in samples]
        rows.append(
            {
                "variant": name,
                "us_per_token": spread([1e6 * s[name] / (BATCH * CHUNK) for s in samples]),
                "percent_of_step": spread(shares),
            }
        )
    return rows
