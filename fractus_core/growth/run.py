"""A run grown into another: weights, optimizer and streams; or a new one from grown weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fractus_core.engine import EngineConfig, EngineState
from fractus_core.errors import FractusError
from fractus_core.growth.model import Step, grow_model
from fractus_core.growth.moments import Moments, merged
from fractus_core.growth.target import changes
from fractus_core.plugins.registry import Registry
from fractus_core.runs.assembly import make_model
from fractus_core.runs.config import RunConfig
from fractus_core.runs.derive import Origin, derive
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.run import Run


def grow_run(
    registry: Registry,
    origin: Origin,
    engine: EngineConfig,
    out: RunDirectory,
    *,
    tell: Callable[[Step], None] = lambda step: None,
) -> bool:
    """Write `out`: `origin` with the larger `engine`, to be gone on with by `--resume`.

    Returns whether the optimizer goes on with what it knew; else it starts anew.

    Raises:
        FractusError: a front-end cannot follow, or `out` cannot be written.
    """
    out.require_absent()
    checkpoint = origin.checkpoint
    config = dataclasses.replace(origin.config, brain=None)
    frontends = {plugged.name: plugged for plugged in config.frontends}
    moments = _moments(registry, origin, config)
    model = make_model(registry, config.engine, frontends, config.seed)
    model.load(checkpoint.trees)
    grown = grow_model(registry, model, engine, frontends, seed=config.seed, tell=tell)
    new = Run.assemble(registry, out, dataclasses.replace(config, engine=engine))
    trees = grown.model.trees() | {"trainer": new.trainer.state_dict()}
    if moments is not None:
        moments.grown(grown).give(new.model, new.trainer)
        trees["trainer"] = merged(checkpoint.trees["trainer"], new.trainer.state_dict())
    for name in frontends:
        state = EngineState.from_state_dict(checkpoint.trees[f"stream-{name}"])
        trees[f"stream-{name}"] = grown.state(state).state_dict()
    derive(origin, out, config=new.config, trees=trees, lineage=_lineage(origin, engine))
    return moments is not None


def _moments(registry: Registry, origin: Origin, config: RunConfig) -> Moments | None:
    old = Run.assemble(registry, origin.directory, config)
    old.trainer.load_state_dict(origin.checkpoint.trees["trainer"])
    return Moments.of(old.model, old.trainer)


def start_from(
    registry: Registry,
    origin: Origin,
    config: RunConfig,
    out: RunDirectory,
    *,
    tell: Callable[[Step], None] = lambda step: None,
) -> None:
    """Write `out`: a new run whose weights are the origin's, grown to its engine.

    All else is its own and new. A front-end that the origin has not, starts fresh.

    Raises:
        FractusError: a front-end is another than the origin's of the same name, or cannot follow.
    """
    run = Run.rehearse(registry, out, config)
    were = {plugged.name: plugged for plugged in origin.config.frontends}
    shared = {plugged.name: plugged for plugged in config.frontends if plugged.name in were}
    for name, plugged in shared.items():
        if plugged.schema != were[name].schema:
            raise FractusError(
                f"front-end {name!r} is another than that of {origin.directory.path}: "
                "tokens or classes are not the same; give its options and data, or other front-ends"
            )
    model = make_model(registry, origin.config.engine, shared, config.seed)
    try:
        model.load(origin.checkpoint.trees)
    except RuntimeError as error:  # torch's, of many lines
        raise FractusError(
            f"the front-ends of {origin.directory.path} have weights of other shapes: "
            "give the options that they were made with"
        ) from error
    grown = grow_model(registry, model, config.engine, shared, seed=config.seed, tell=tell)
    run.model.load(run.model.trees() | grown.model.trees())
    derive(
        origin,
        out,
        config=run.config,
        trees=run.trees(),
        cursors={lane.name: lane.source.cursor() for lane in run.lanes},
        lineage=_lineage(origin, config.engine),
    )


def _lineage(origin: Origin, engine: EngineConfig) -> dict[str, Any]:
    return {
        "grown_from": str(origin.directory.path.resolve()),
        "changes": changes(origin.config.engine, engine),
    }
