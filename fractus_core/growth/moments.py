"""What an optimizer knows of the old parameters, for the new ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from fractus_core.contract import Trainer
from fractus_core.growth.growth import Trees
from fractus_core.growth.model import Grown
from fractus_core.runs.model import Model
from fractus_core.runs.optimizers import optimizers_of

POWERS = {
    "exp_avg": 1,
    "grad_avg": 1,
    "momentum_buffer": 1,
    "exp_avg_sq": 2,
    "max_exp_avg_sq": 2,
    "square_avg": 2,
    "sum": 2,
    "step": 0,
}
"""What torch's optimizers keep of each parameter, as powers of its gradient."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What a trainer's torch optimizers keep of each parameter; on the CPU."""

    kept: Mapping[tuple[type[Optimizer], str], Trees]
    """By kind of optimizer and key of its state."""

    @classmethod
    def of(cls, model: Model, trainer: Trainer) -> Self | None:
        """None if the trainer has no torch optimizer, or one that keeps something else."""
        kept: dict[tuple[type[Optimizer], str], Trees] = {}
        names, optimizers = _names(model), list(optimizers_of(trainer))
        for optimizer in optimizers:
            for parameter, state in optimizer.state.items():
                module, name = names[parameter]
                for key, value in state.items():
                    if value is None:
                        continue
                    if key not in POWERS or not isinstance(value, Tensor):
                        return None
                    trees = kept.setdefault(
                        (type(optimizer), key), {m: {} for m, _ in model.modules()}
                    )
                    trees[module][name] = value.detach().cpu()
        return cls(kept) if optimizers else None

    def grown(self, grown: Grown) -> Self:
        kept = {(kind, key): grown.moments(t, POWERS[key]) for (kind, key), t in self.kept.items()}
        return type(self)(kept)

    def give(self, model: Model, trainer: Trainer) -> None:
        """To a trainer of a model that they fit."""
        names = _names(model)
        for optimizer in optimizers_of(trainer):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    module, name = names[parameter]
                    state = {
                        key: _placed(trees[module][name], parameter)
                        for (kind, key), trees in self.kept.items()
                        if kind is type(optimizer) and name in trees[module]
                    }
                    if state:
                        optimizer.state[parameter] = state


def _names(model: Model) -> dict[Tensor, tuple[str, str]]:
    return {
        parameter: (module, name)
        for module, part in model.modules()
        for name, parameter in part.named_parameters()
    }


def _placed(value: Tensor, parameter: nn.Parameter) -> Tensor:
    """As large as the parameter and where it is; a counter stays as it is."""
    if not value.dim():
        return value.clone()
    return torch.empty_like(parameter).copy_(value)


def merged(old: Any, new: Any) -> Any:
    """Two states of a trainer: optimizers are the new one's, all else is the old one's."""
    if isinstance(new, dict) and {"state", "param_groups"} <= new.keys():
        groups = [
            was | {"params": group["params"]}
            for was, group in zip(old["param_groups"], new["param_groups"], strict=True)
        ]
        return new | {"param_groups": groups}
    if isinstance(new, dict) and isinstance(old, dict):
        return {key: merged(old[key], new[key]) if key in old else new[key] for key in new}
    if isinstance(new, list) and isinstance(old, list) and len(old) == len(new):
        return [merged(a, b) for a, b in zip(old, new, strict=True)]
    if isinstance(new, Tensor) and isinstance(old, Tensor) and old.shape != new.shape:
        return new
    return old
