"""An engine and its front-ends, as one thing to save, load and count."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from fractus_core.contract import Frontend
from fractus_core.engine import ContinuousThoughtEngine
from fractus_core.runs.sharded import is_sharded, part_tree


@dataclass(frozen=True, slots=True)
class Model:
    """What a run trains."""

    engine: ContinuousThoughtEngine
    frontends: Mapping[str, Frontend]
    """By name."""

    def load(self, trees: Mapping[str, Any]) -> None:
        """Whole tensors, whether or not the modules are sharded."""
        for name, module in self.modules():
            module.load_state_dict(part_tree(trees[name], module.state_dict()))

    def trees(self) -> dict[str, Any]:
        """What `load` reads, if it is whole: `engine`, and `frontend-NAME` for each."""
        return {name: module.state_dict() for name, module in self.modules()}

    def parameter_count(self) -> int:
        return sum(p.numel() for _, module in self.modules() for p in module.parameters())

    def is_sharded(self) -> bool:
        return any(is_sharded(p) for _, module in self.modules() for p in module.parameters())

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        """Engine and front-ends, by the names of their trees."""
        yield "engine", self.engine
        for name, frontend in self.frontends.items():
            yield f"frontend-{name}", as_module(frontend)


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
