"""Lanes without data or trainer, whose weights are a few numbers and move as one says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fractus_core.brain.config import BrainLink, Rule
from fractus_core.brain.directory import BrainDirectory
from fractus_core.brain.lane import Base, BrainLane
from fractus_core.engine import EngineConfig
from fractus_core.runs.budget import Budget, Spent
from fractus_core.runs.cadence import Cadence
from fractus_core.runs.config import Plugged, PluggedFrontend, RunConfig
from fractus_core.runs.model import Model

Vector = npt.NDArray[np.float64]
SIZE = 6


class Part(nn.Module):
    """`SIZE` weights in two tensors, and a counter."""

    count: torch.Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        values = torch.from_numpy(np.random.default_rng(seed).normal(size=SIZE)).float()
        self.first, self.rest = nn.Parameter(values[:2]), nn.Parameter(values[2:].view(2, 2))
        self.register_buffer("count", torch.tensor(seed))

    def get(self) -> Vector:
        return vector(self.state_dict())

    def move(self, by: Vector) -> None:
        with torch.no_grad():
            self.first += torch.from_numpy(by[:2])
            self.rest += torch.from_numpy(by[2:]).view(2, 2)


def vector(tree: dict[str, Any]) -> Vector:
    """The weights of a `Part`, in double precision."""
    both = torch.cat([tree["first"].flatten(), tree["rest"].flatten()])
    return both.double().detach().numpy()


def delta(seed: int) -> Vector:
    return np.random.default_rng([seed, 1]).normal(size=SIZE)


class ToyLane:
    """Of a brain; joined when it is made."""

    def __init__(
        self,
        brain: Path,
        seed: int = 0,
        *,
        frontend: str = "text",
        rule: Rule | None = None,
        lane: str = "",
        options: dict[str, Any] | None = None,
        schema: dict[str, Any] | None = None,
        data: str = "corpus",
        share: int = 1,
    ) -> None:
        plugged = PluggedFrontend(
            name=frontend,
            distribution="fractus",
            version="1",
            options=options or {"tokenizer": "bytes"},
            data=data,
            schema=schema or {"size": 257},
            fingerprints={"train": f"{data}-train", "validation": f"{data}-validation"},
            share=share,
        )
        self.core, self.head = Part(seed), Part(100 + seed)
        self.model = Model(self.core, {frontend: self.head})  # type: ignore[arg-type, dict-item]
        self.config = RunConfig(
            engine=EngineConfig(d_model=32),
            frontends=(plugged,),
            trainer=Plugged(name="toy", distribution="fractus", version="1", options={}),
            seed=seed,
            budget=Budget(steps=1),
            log_every=1,
            eval_every=1,
            eval_tokens=1,
            checkpoint_every=Cadence(steps=1),
        )
        self.frontend, self.run = frontend, str(brain.parent / f"run-{seed}")
        self.spent = Spent()
        link = BrainLink(directory=str(brain), lane=lane, rule=rule)
        self.brain = BrainLane.join(link, self.config, self.run, self.model)

    @property
    def name(self) -> str:
        return self.brain.name

    @property
    def key(self) -> str:
        """Of the front-end, in the brain."""
        return self.brain.keys[self.frontend]

    def learn(self, core: Vector, head: Vector | None = None, *, tokens: int = 10) -> None:
        """Move the weights."""
        self.core.move(core)
        if head is not None:
            self.head.move(head)
        self.core.count += 1
        self.spent.tokens += tokens
        self.spent.steps += 1

    def exchange(self) -> dict[str, Any]:
        return self.brain.exchange(self.model, self.run, self.spent)

    def leave(self) -> None:
        self.brain.leave()

    def checkpoint(self) -> SimpleNamespace:
        """What a run saves of its lane."""
        return SimpleNamespace(
            trees={name: dict(tree) for name, tree in _cloned(self.model.trees()).items()},
            base=Base(self.brain.base.number, self.brain.base.tokens, self.brain.base.weights),
            spent=Spent(self.spent.tokens, self.spent.steps),
        )

    def resume(self, saved: SimpleNamespace) -> None:
        """Be a process that goes on from there."""
        self.brain = BrainLane.rejoin(self.brain.link, self.config)
        self.brain.base, self.spent = saved.base, saved.spent
        self.model.load(saved.trees)


def _cloned(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _cloned(value) for name, value in tree.items()}
    return tree.clone()


def core_of(brain: Path) -> Vector:
    return vector(BrainDirectory(brain).snapshot().weights["engine"])


def head_of(brain: Path, key: str) -> Vector:
    return vector(BrainDirectory(brain).snapshot().weights[f"frontend-{key}"])
