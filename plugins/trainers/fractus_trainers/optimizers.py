"""torch's optimizers over an engine and its front-ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer, RMSprop

from fractus_core.api import sharded
from fractus_trainers.muon import Muon

DEFAULT_LR = {"adamw": 4e-3, "muon": 8e-3, "rmsprop": 1e-3, "sgd": 0.1}
"""The highest learning rate where the user names none. Those of adamw and muon were measured at the
size of stage0; the others are customary."""
BETAS = (0.9, 0.99)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Optimizers:
    """One or several optimizers that step together, at `base_lr` times a factor."""

    def __init__(
        self,
        optimizers: list[Optimizer],
        base_lr: float,
        *,
        shrinking: Sequence[nn.Parameter] = (),
        weight_decay: float = 0.0,
    ) -> None:
        """`shrinking` are parameters whose decoupled weight decay torch's optimizer does not do."""
        self.optimizers = optimizers
        self.base_lr = base_lr
        self.shrinking: list[torch.Tensor] = list(shrinking)  # what no gradient reached stays
        self.weight_decay = weight_decay
        self.parameters: list[nn.Parameter] = [
            p
            for optimizer in optimizers
            for group in optimizer.param_groups
            for p in group["params"]
        ]
        self._give_momenta()

    def step(self, factor: float) -> float:
        """Step with `factor` of the base learning rate, clear the gradients, return the rate."""
        lr = self.base_lr * factor
        shrinking = [p for p in self.shrinking if p.grad is not None]
        if shrinking:
            with torch.no_grad():
                torch._foreach_mul_(shrinking, 1 - lr * self.weight_decay)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return lr

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
            for p, values in optimizer.state.items():
                for name, value in values.items():
                    if isinstance(value, torch.Tensor) and value.shape == p.shape:
                        values[name] = sharded.part(value, like=p)
        self._give_momenta()

    def _give_momenta(self) -> None:
        """To parameters that have none: torch's fused SGD wants them of all or of none.

        Some (of another lane, of a block whose turn comes later, or made anew in a retokenized
        run) have no gradient, and so no momentum, yet.
        """
        for optimizer in self.optimizers:
            if not isinstance(optimizer, SGD):
                continue
            for group in optimizer.param_groups:
                for p in group["params"] if group["momentum"] else ():
                    if "momentum_buffer" not in optimizer.state[p]:
                        optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def make_optimizers(
    name: str,
    modules: Iterable[nn.Module],
    *,
    lr: float,
    weight_decay: float,
    momentum: float = 0.9,
) -> Optimizers:
    """Matrices decay, gains and biases do not. `muon` takes what multiplies vectors: projections,
    convolutions and experts; the rest (embeddings, gains, biases) goes to AdamW. `momentum` is of
    `sgd`.
    """
    parameters = list(dict.fromkeys(p for module in modules for p in module.parameters()))
    matrices = [p for p in parameters if p.dim() >= 2]
    groups = [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    if name == "adamw":
        return Optimizers([AdamW(groups, lr=lr, betas=BETAS, fused=True)], lr)
    if name == "muon":
        return Optimizers(_muon(list(modules), parameters, lr, weight_decay), lr)
    plain: Optimizer
    if name == "sgd":
        # torch cannot fuse it over parts.
        fused = not any(map(sharded.is_sharded, parameters))
        plain = SGD(parameters, lr=lr, momentum=momentum, fused=fused, foreach=not fused)
    else:
        assert name == "rmsprop", name
        plain = RMSprop(parameters, lr=lr, foreach=True)
    return Optimizers([plain], lr, shrinking=matrices, weight_decay=weight_decay)


def _muon(
    modules: list[nn.Module], parameters: list[nn.Parameter], lr: float, weight_decay: float
) -> list[Optimizer]:
    found = [m for module in modules for m in module.modules()]
    linear = {m.weight for m in found if isinstance(m, nn.Linear) and min(m.weight.shape) > 1}
    convolutions = {m.weight for m in found if isinstance(m, CONVOLUTIONS)}
    matrices = [p for p in parameters if p in linear or (p.dim() == 3 and p not in convolutions)]
    flattened = [p for p in parameters if p in convolutions]
    rest = [p for p in parameters if p not in {*matrices, *flattened}]
    groups = [
        {"params": [p for p in rest if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in rest if p.dim() < 2], "weight_decay": 0.0},
    ]
    orthogonal = [{"params": matrices}, {"params": flattened, "flatten": True}]
    return [
        Muon(orthogonal, lr=lr, weight_decay=weight_decay),
        AdamW(groups, lr=lr, betas=BETAS, fused=True),
    ]


def gradient_norm(parameters: list[nn.Parameter]) -> torch.Tensor:
    """The 2-norm of all gradients together, a scalar."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return sharded.whole(nn.utils.get_total_norm(gradients, foreach=True))
