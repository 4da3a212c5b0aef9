"""How good an engine and a front-end are on held-out data, warm and cold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from fractus_core.contract import Batch, Frontend, Source
from fractus_core.engine.engine import ContinuousThoughtEngine
from fractus_core.engine.probe import RoutingProbe
from fractus_core.runs.model import eval_mode

ROWS, CHUNK = 16, 128
"""Streams read side by side, and vectors per call."""
COLD_LENGTH = 1024
"""A cold stream is started from a reset state and read for so many vectors."""


@dataclass(slots=True)
class _Totals:
    """Sums and weights of the loss and of each metric."""

    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    weights: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, name: str, total: float, weight: float) -> None:
        self.sums[name] += total
        self.weights[name] += weight

    def means(self) -> dict[str, float]:
        return {name: self.sums[name] / self.weights[name] for name in self.sums}


@torch.no_grad()
def evaluate(
    engine: ContinuousThoughtEngine,
    frontend: Frontend,
    open_source: Callable[[], Source],
    *,
    limit: int | None = None,
    advance: Callable[[int], None] = lambda vectors: None,
) -> dict[str, Any]:
    """Read held-out data twice: with the state carried through, and in cold streams.

    Args:
        open_source: opens a pass over the data, with `ROWS` rows and chunks of `CHUNK`.
        limit: vectors to read at most, in each pass.
        advance: is told the vectors read, for progress.

    Returns:
        `loss_warm`, `loss_cold`, `loss_uniform` in nats, the front-end's metrics (warm), `tokens`
        read in one pass, and `routing`, the report of a `RoutingProbe` in the warm pass.
    """
    with eval_mode(engine, frontend):
        probe = RoutingProbe(engine.config)
        warm, tokens, always_new = _read(
            engine, frontend, open_source(), limit, None, probe, advance
        )
        cold = dict(warm)
        if not always_new:  # where every chunk starts anew, warm streams are cold
            cold, _, _ = _read(engine, frontend, open_source(), limit, COLD_LENGTH, None, advance)
    return {
        "loss_warm": warm.pop("loss"),
        "loss_cold": cold["loss"],
        "loss_uniform": frontend.uniform_loss,
        **warm,
        "tokens": tokens,
        "routing": probe.report(),
    }


def _read(
    engine: ContinuousThoughtEngine,
    frontend: Frontend,
    batches: Iterable[Batch],
    limit: int | None,
    reset_every: int | None,
    probe: RoutingProbe | None,
    advance: Callable[[int], None],
) -> tuple[dict[str, float], int, bool]:
    """Means, vectors read, and whether every chunk of every row started anew."""
    totals, read, age, always_new = _Totals(), 0, 0, True
    state = None
    for batch in batches:
        batch = batch.to(engine.log_decay.device)
        B = len(batch.starts)
        if state is None or state.batch_size != B:
            state = engine.initial_state(B)
        if reset_every is not None and age >= reset_every:
            state, age = state.reset(), 0
        vectors = frontend.embed(batch.observations)
        hidden, _, state = engine.tick_chunk_train(
            vectors, state.reset(rows=batch.starts.cpu()), probe
        )
        score = frontend.score(hidden, batch.targets)
        totals.add("loss", float(score.loss) * score.weight, score.weight)
        for name, (total, weight) in score.metrics.items():
            totals.add(name, total, weight)
        always_new &= bool(batch.starts.all())
        vectors_read = vectors.shape[0] * vectors.shape[1]
        age += vectors.shape[1]
        read += vectors_read
        advance(vectors_read)
        if limit is not None and read >= limit:
            break
    assert read, "a source that opens has at least one batch"
    return totals.means(), read, always_new
