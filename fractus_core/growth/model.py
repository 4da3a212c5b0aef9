"""Growing an engine and its front-ends, one kind after the other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from fractus_core.contract import Source
from fractus_core.engine import EngineConfig, EngineState
from fractus_core.growth.depth import Depth
from fractus_core.growth.drift import CHUNK, ROWS, Drift, measure
from fractus_core.growth.experts import Experts
from fractus_core.growth.growth import Growth, Trees
from fractus_core.growth.oscillators import Oscillators
from fractus_core.growth.target import changes, steps
from fractus_core.growth.units import Hidden, Rank
from fractus_core.growth.width import Width, cannot_follow
from fractus_core.plugins.registry import Registry
from fractus_core.runs.assembly import make_model, open_source
from fractus_core.runs.config import PluggedFrontend
from fractus_core.runs.model import Model, eval_mode

GROWTHS: dict[str, type[Growth]] = {
    "oscillators": Oscillators,
    "rank": Rank,
    "d_ff": Hidden,
    "experts": Experts,
    "width": Width,
    "depth": Depth,
}
TOLERANCE = 1e-3
"""Of what a front-end says at its new width, relative to its largest value."""


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of growth that was done."""

    growth: Growth
    kind: str
    drift: Mapping[str, Drift]
    """By front-end."""

    @property
    def changes(self) -> dict[str, list[int]]:
        return changes(self.growth.old, self.growth.new)

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {a} -> {b}" for name, (a, b) in self.changes.items())
        return sizes if self.kind in self.changes else f"{self.kind}: {sizes}"


@dataclass(frozen=True, slots=True)
class Grown:
    model: Model
    steps: list[Step]

    def state(self, state: EngineState) -> EngineState:
        for step in self.steps:
            state = step.growth.state(state)
        return state

    def moments(self, trees: Trees, power: int) -> Trees:
        for step in self.steps:
            trees = step.growth.moments(trees, power)
        return trees


def grow_model(
    registry: Registry,
    model: Model,
    engine: EngineConfig,
    frontends: Mapping[str, PluggedFrontend],
    *,
    seed: int,
    tell: Callable[[Step], None] = lambda step: None,
) -> Grown:
    """`model`, which stays as it is, grown to `engine`.

    Args:
        engine: see `target`.
        frontends: of the model's front-ends, what they were made from; their held-out data is read.
        seed: draws what is new.
        tell: is told each step when it is done.

    Raises:
        FractusError: a front-end cannot follow.
    """
    draw = torch.Generator().manual_seed(seed)
    done: list[Step] = []
    for kind, before, after in steps(model.engine.config, engine):
        larger = make_model(registry, after, frontends, seed)
        growth = GROWTHS[kind](before, after, larger.trees(), draw)
        larger.load(growth.weights(model.trees()))
        drift = {}
        for name, plugged in frontends.items():
            if isinstance(growth, Width):
                require_followed(growth, name, model, larger, held_out(model, plugged, seed))
            drift[name] = measure(
                (model.engine, model.frontends[name]),
                (larger.engine, larger.frontends[name]),
                held_out(model, plugged, seed),
            )
        done.append(Step(growth, kind, drift))
        tell(done[-1])
        model = larger
    return Grown(model, done)


def held_out(model: Model, plugged: PluggedFrontend, seed: int) -> Source:
    frontend = model.frontends[plugged.name]
    # In other rows and chunks than a run's own evaluations, so with another fingerprint.
    plugged = dataclasses.replace(plugged, fingerprints={})
    return open_source(frontend, plugged, "validation", batch_size=ROWS, chunk_len=CHUNK, seed=seed)


@torch.no_grad()
def require_followed(growth: Width, name: str, old: Model, new: Model, source: Source) -> None:
    """Raises `FractusError` unless the front-end, at its new width, says what it said before."""
    batch = next(source)
    small, large = old.frontends[name], new.frontends[name]
    with eval_mode(old.engine, small), eval_mode(new.engine, large):
        vectors, wider = small.embed(batch.observations), large.embed(batch.observations)
        hidden = torch.randn(vectors.shape, generator=torch.Generator().manual_seed(0))
        copied = len(growth.channels.source)
        pairs = (
            (vectors[..., growth.channels.source], wider[..., :copied], "vectors"),
            (small.answer(hidden), large.answer(growth.hidden(hidden)), "answers"),
        )
    for expected, found, what in pairs:
        if not (found - expected).abs().max() <= TOLERANCE * expected.abs().max():
            raise cannot_follow(name, f"its {what} change")
