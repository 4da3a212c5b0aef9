"""A run's place in a brain: what it took from it, and how it gives back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from filelock import Timeout
from torch import Tensor

from fractus_core.brain.config import BrainConfig, BrainLink
from fractus_core.brain.directory import (
    BrainDirectory,
    Content,
    LaneRecord,
    free_name,
    now,
)
from fractus_core.brain.rules import Nesterov, Weights, distance, moved
from fractus_core.errors import FractusError
from fractus_core.runs.budget import Spent
from fractus_core.runs.config import PluggedFrontend, RunConfig
from fractus_core.runs.model import Model

Trees = dict[str, Any]
"""Weights of each module, by its name."""


@dataclass(slots=True)
class Base:
    """The brain's weights as the lane last took them."""

    number: int
    """Of the exchange after which they were taken."""
    tokens: int
    """That the lane's run had read then."""
    weights: Trees
    """As `Model.trees`."""


class BrainLane:
    """Made by `join` or `rejoin`; held while the run trains.

    Each exchange takes three steps: the run saves a checkpoint; the brain is written with the
    lane's difference in it; the lane takes the brain's weights. Whatever instant a process dies at,
    the checkpoint knows the base of what it has learnt since, and the brain knows the last exchange
    of each lane, so that nothing is given twice or lost: the exchange is made again, and what was
    done of it is left out.
    """

    def __init__(
        self, directory: BrainDirectory, config: BrainConfig, link: BrainLink, keys: dict[str, str]
    ) -> None:
        self.directory, self.config, self.link, self.name = directory, config, link, link.lane
        self.keys = keys
        """Of each of the run's front-ends, in the brain."""
        self._lock = directory.lane_lock(link.lane)
        self.base = Base(0, 0, {})

    # ------------------------------------------------------------------------- joining and leaving

    @classmethod
    def join(cls, link: BrainLink, config: RunConfig, run: str, model: Model) -> Self:
        """A new lane. The first brings the weights, those after it take them into `model`.

        A front-end that the brain has, with the same options and schema, is shared; others are
        added to it.

        Raises:
            FractusError: the brain is of another kind, or has such a lane already.
        """
        directory = BrainDirectory(Path(link.directory))
        found = directory.open_or_create(config.engine, link.rule)
        with directory.locked():
            content = directory.read()
            number, taken = content.number + 1, directory.taken(content)
            name = link.lane or free_name(_default_name(config), taken)
            if name in taken:
                raise FractusError(
                    f"the brain {directory.path} has a lane {name!r} already, of the run "
                    f"{content.lanes[name].run}: give another --lane, or go on with it by --resume"
                )
            keys = _keys(content, config.frontends)
            lane = cls(directory, found, replace(link, lane=name, id=found.id, joined=number), keys)
            own = model.trees()
            for ours, theirs in lane._names(own).items():
                content.weights.setdefault(theirs, _copy(own[ours]))
            content.lanes[name] = LaneRecord(
                sorted(keys.values()), run, joined=number, last_exchange=number, time=now()
            )
            directory.write(content)
            lane._hold()
            lane._take(model, content, tokens=0)
        return lane

    @classmethod
    def rejoin(cls, link: BrainLink, config: RunConfig) -> Self:
        """The lane of a run that is resumed. Raises `FractusError` if the brain is not the same."""
        directory = BrainDirectory(Path(link.directory))
        if not directory.exists:
            raise FractusError(
                f"the run's brain is not at {directory.path}: say with --brain where it is; if it "
                "is gone, the run cannot go on, but eval and generate still read its checkpoint"
            )
        with directory.locked():
            content = _read(directory, link)
            lane = cls(directory, directory.config(), link, _keys(content, config.frontends))
            lane._hold()
        return lane

    def _hold(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FractusError(
                f"lane {self.name!r} of {self.directory.path} is being trained by another process"
            ) from None

    def leave(self) -> None:
        self._lock.release()

    # --------------------------------------------------------------------------------- exchanging

    def take(self, model: Model, tokens: int) -> None:
        """Only take the brain's weights, for what is not in `model` yet."""
        with self.directory.locked():
            content = _read(self.directory, self.link)
        self._take(model, content, tokens)

    def has_given(self) -> bool:
        """After a resume: is what was learnt since the last time in the brain already?"""
        with self.directory.locked():
            content = _read(self.directory, self.link)
        return self._is_in(content)

    def exchange(self, model: Model, run: str, spent: Spent) -> dict[str, Any]:
        """Give what was learnt since the last time, if it is not in the brain already, and take
        what the others gave.

        Returns the lane's record, for the log.
        """
        with self.directory.locked():
            content = _read(self.directory, self.link)
            if not self._is_in(content):
                self._give(content, model, run, spent)
        self._take(model, content, spent.tokens)
        record = content.lanes[self.name]
        return {
            "exchange": record.last_exchange,
            "lanes": len(content.lanes),
            "n": record.n,
            "drift": record.drift,
        }

    def _is_in(self, content: Content) -> bool:
        return content.lanes[self.name].last_exchange > self.base.number

    def _give(self, content: Content, model: Model, run: str, spent: Spent) -> None:
        own = {name: _copy(tree) for name, tree in model.trees().items()}
        if not all(value.isfinite().all() for tree in own.values() for value in tree.values()):
            raise FractusError(
                f"lane {self.name!r} has weights that are not finite; nothing was given to the "
                f"brain {self.directory.path}"
            )
        record = content.lanes[self.name]
        n = 1 + len(self._averaged(content))
        content.weights |= self._merged(content, own, n)
        record.run, record.steps = run, spent.steps
        record.tokens += spent.tokens - self.base.tokens
        record.exchanges += 1
        record.n = n
        record.drift = distance(own["engine"], content.weights["engine"])
        record.last_exchange, record.time = content.number + 1, now()
        self.directory.write(content)

    def _merged(self, content: Content, own: Trees, n: int) -> Trees:
        """What of the brain's weights is new."""
        merged: Trees = {}
        for ours, theirs in self._names(own).items():
            brain, base = content.weights[theirs], self.base.weights[ours]
            if ours != "engine":  # whose lanes are always averaged: they do the same
                key = theirs.removeprefix("frontend-")
                part = 1 / (1 + len(self._others(content, key)))
                merged[theirs] = moved(brain, base, own[ours], part)
            elif self.config.rule == "nesterov":
                outer = Nesterov(content.weights.get("outer"))
                merged[theirs] = outer.moved(brain, base, own[ours], n)
                merged["outer"] = outer.state_dict()
            else:
                merged[theirs] = moved(brain, base, own[ours], 1 / n)
        return merged

    def _averaged(self, content: Content) -> list[str]:
        """The lanes with which this one is averaged in the core."""
        match self.config.rule:
            case "sum":
                return []
            case "mean":
                return self._others(content)
            case "auto" | "nesterov":
                mine = content.lanes[self.name].frontends
                return [n for n in self._others(content) if content.lanes[n].frontends == mine]

    def _others(self, content: Content, key: str | None = None) -> list[str]:
        """Lanes that learn at the same time: that are alive, or have given since our base.

        The latter so that the last to finish does not count for more than the first.
        """
        return [
            name
            for name, lane in content.lanes.items()
            if name != self.name
            and (key is None or key in lane.frontends)
            and (
                (lane.exchanges and lane.last_exchange > self.base.number)
                or self.directory.is_alive(name)
            )
        ]

    def _take(self, model: Model, content: Content, tokens: int) -> None:
        names = self._names(model.trees())
        weights = {ours: content.weights[theirs] for ours, theirs in names.items()}
        model.load(weights)
        self.base = Base(content.number, tokens, weights)

    def _names(self, trees: Trees) -> dict[str, str]:
        """Of the model's trees, in the brain."""
        named = {f"frontend-{ours}": f"frontend-{key}" for ours, key in self.keys.items()}
        return {name: named.get(name, name) for name in trees}


def _read(directory: BrainDirectory, link: BrainLink) -> Content:
    """For a lane that has joined; to be called under the lock.

    Raises:
        FractusError: the brain is another, or the lane is not there or another run's.
    """
    found = directory.config().id
    if found != link.id:
        raise FractusError(
            f"{directory.path} is another brain: its id is {found}, the run's brain has {link.id}; "
            "say with --brain where that is"
        )
    content = directory.read()
    record = content.lanes.get(link.lane)
    if record is None:
        raise FractusError(f"the brain {directory.path} has no lane {link.lane!r}")
    if record.joined != link.joined:
        raise FractusError(
            f"lane {link.lane!r} of {directory.path} is the run {record.run}'s: this run had given "
            "nothing; start it anew"
        )
    return content


def _default_name(config: RunConfig) -> str:
    name, shard = config.frontends[0].name.replace(":", "."), config.shard
    return f"{name}-{shard.index}of{shard.count}" if shard.count > 1 else name


def _keys(content: Content, frontends: tuple[PluggedFrontend, ...]) -> dict[str, str]:
    """Of each front-end, in the brain; those that are new to it are added."""
    keys = {}
    for plugged in frontends:
        key = content.key_of(plugged)
        if key is None:
            key = free_name(plugged.name.replace(":", "."), content.frontends)
            held_out = {k: v for k, v in plugged.fingerprints.items() if k == "validation"}
            content.frontends[key] = replace(plugged, fingerprints=held_out, share=1)
        keys[plugged.name] = key
    return keys


def _copy(weights: Weights) -> dict[str, Tensor]:
    return {name: value.detach().cpu().clone() for name, value in weights.items()}
