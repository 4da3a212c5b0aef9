"""From `run.json` to modules: the engine, the front-ends and the trainer of a run."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

import torch

from fractus_core.contract import WHOLE, Frontend, Shard, Source, Split, Trainer
from fractus_core.engine import ContinuousThoughtEngine, EngineConfig
from fractus_core.errors import FractusError
from fractus_core.plugins.records import Entry
from fractus_core.plugins.registry import Registry, load_target
from fractus_core.plugins.specs import TrainerSpec
from fractus_core.runs.checkpoint import Checkpoint
from fractus_core.runs.config import Plugged, PluggedFrontend, RunConfig
from fractus_core.runs.directory import RunDirectory
from fractus_core.runs.model import Model


def infer_frontend(
    registry: Registry, name: str, options: dict[str, Any], data: str, *, share: int = 1
) -> PluggedFrontend:
    """Look at the data once: the front-end's part of a new `run.json`, but for fingerprints."""
    entry = registry.frontend(name)
    cls: type[Frontend] = load_target(entry)
    return PluggedFrontend(
        name=name,
        distribution=entry.distribution,
        version=entry.version,
        options=options,
        data=data,
        schema=dict(cls.infer_schema(data, options)),
        share=share,
    )


def plug_trainer(
    registry: Registry, name: str, options: dict[str, Any], frontends: Iterable[str]
) -> Plugged:
    """Raises `FractusError` if it cannot train these front-ends, or not on this machine."""
    entry = registry.trainer(name)
    _require_accepted(registry, entry, frontends)
    load_target(entry)(options, seed=0)
    return Plugged(
        name=name, distribution=entry.distribution, version=entry.version, options=options
    )


def make_model(
    registry: Registry, engine: EngineConfig, frontends: Mapping[str, PluggedFrontend], seed: int
) -> Model:
    """Fresh modules, the same for the same seed."""
    torch.manual_seed(seed)
    made = ContinuousThoughtEngine(engine)
    modules: dict[str, Frontend] = {}
    for name, plugged in frontends.items():
        cls = load_target(registry.frontend(plugged.name))
        modules[name] = cls(engine.d_model, plugged.options, plugged.schema)
    return Model(made, modules)


def make_trainer(registry: Registry, config: RunConfig) -> Trainer:
    """Raises `FractusError` if it cannot train on what a front-end emits."""
    entry = registry.trainer(config.trainer.name)
    _require_accepted(registry, entry, [plugged.name for plugged in config.frontends])
    # What is newer than the run is as if it had been left out when the run was started.
    defaults = {option.name: option.default for option in entry.spec.options}
    trainer: Trainer = load_target(entry)(defaults | config.trainer.options, seed=config.seed)
    return trainer


def _require_accepted(
    registry: Registry, entry: Entry[TrainerSpec], frontends: Iterable[str]
) -> None:
    for name in frontends:
        emits = registry.frontend(name).spec.emits
        if entry.spec.accepts and emits not in entry.spec.accepts:
            raise FractusError(
                f"trainer {entry.name!r} accepts {', '.join(entry.spec.accepts)}; "
                f"front-end {name!r} emits {emits}"
            )


def open_source(
    frontend: Frontend,
    plugged: PluggedFrontend,
    split: Split,
    *,
    batch_size: int,
    chunk_len: int,
    seed: int,
    shard: Shard = WHOLE,
) -> Source:
    """Raises `FractusError` if the data is not what the run was started with."""
    source = frontend.open(
        plugged.data, split, batch_size=batch_size, chunk_len=chunk_len, seed=seed, shard=shard
    )
    expected = plugged.fingerprints.get(split, source.fingerprint)
    if source.fingerprint != expected:
        raise FractusError(
            f"the {split} data {plugged.data!r} of front-end {plugged.name!r} has changed: its "
            f"fingerprint is {source.fingerprint}, the run was started with {expected}"
        )
    return source


def newest_checkpoint(
    directory: RunDirectory, *, allow_previous: bool
) -> tuple[str, Checkpoint] | None:
    """The newest checkpoint with its name, or, when allowed, the newest that is not damaged.

    None if there is none at all.

    Raises:
        FractusError: if it is damaged, or `run.json` is not the one that it was made with.
    """
    store = directory.checkpoints
    if not allow_previous:
        try:
            name = store.newest()
            found = None if name is None else (name, store.load(name))
        except FractusError as error:
            hint = "--allow-previous passes over what is damaged"
            raise FractusError(f"{error}; {hint}" if store.names() else str(error)) from error
    elif store.names():
        found = store.newest_good()
    else:
        found = None
    if found is not None and found[1].info["config"] != directory.read_config().identity():
        raise FractusError(
            f"{directory.config_file} is damaged: it is not the one that the checkpoint "
            f"{found[0]} was made with"
        )
    return found


def environment() -> dict[str, str]:
    """What else decides the numbers."""
    return {
        "fractus": version("fractus"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "platform": platform.platform(),
    }


def with_fingerprints(plugged: PluggedFrontend, **sources: Source) -> PluggedFrontend:
    fingerprints = {split: source.fingerprint for split, source in sources.items()}
    return dataclasses.replace(plugged, fingerprints=fingerprints)
