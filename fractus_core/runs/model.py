"""An engine and its front-ends, as one thing to save, load and count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from fractus_core.contract import Frontend
from fractus_core.engine import ContinuousThoughtEngine


@dataclass(frozen=True, slots=True)
class Model:
    """What a run trains."""

    engine: ContinuousThoughtEngine
    frontends: Mapping[str, Frontend]
    """By name."""

    def load(self, trees: Mapping[str, Any]) -> None:
        self.engine.load_state_dict(trees["engine"])
        for name, frontend in self.frontends.items():
            as_module(frontend).load_state_dict(trees[f"frontend-{name}"])

    def trees(self) -> dict[str, Any]:
        """What `load` reads: `engine`, and `frontend-NAME` for each."""
        return {"engine": self.engine.state_dict()} | {
            f"frontend-{name}": as_module(frontend).state_dict()
            for name, frontend in self.frontends.items()
        }

    def parameter_count(self) -> int:
        modules = [self.engine, *map(as_module, self.frontends.values())]
        return sum(p.numel() for module in modules for p in module.parameters())


def as_module(frontend: Frontend) -> nn.Module:
    """A front-end is a module by contract, which a protocol cannot say."""
    return cast(nn.Module, frontend)


@contextmanager
def eval_mode(engine: ContinuousThoughtEngine, frontend: Frontend) -> Iterator[None]:
    """Both in eval mode meanwhile, and then as they were."""
    modes = [(module, module.training) for module in (engine, as_module(frontend))]
    try:
        for module, _ in modes:
            module.eval()
        yield
    finally:
        for module, training in modes:
            module.train(training)
