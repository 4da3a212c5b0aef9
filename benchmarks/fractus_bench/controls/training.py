"""How the controls are trained, for a time; and how large they are made."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from fractus_trainers.optimizers import gradient_norm, make_optimizers
from fractus_trainers.schedule import warmup_stable_decay

Schedule = Literal["cosine", "wsd"]
WARMUP, WEIGHT_DECAY, CLIP = 100, 0.1, 1.0
M = TypeVar("M", bound=nn.Module)


def train(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    *,
    seconds: float,
    lr: float,
    schedule: Schedule,
    compiled: bool = False,
) -> int:
    """AdamW (betas 0.9 and 0.99) for `seconds`; returns the steps made.

    The time that `torch.compile` takes does not count.
    """
    model.train()
    optimizers = make_optimizers("adamw", [model], lr=lr, weight_decay=WEIGHT_DECAY)
    if compiled:
        model.compile(dynamic=False)
        inputs, targets = next(batches)
        loss(model(inputs), targets).backward()
        model.zero_grad()
    begun, steps = time.perf_counter(), 0
    while (progress := (time.perf_counter() - begun) / seconds) < 1:
        inputs, targets = next(batches)
        loss(model(inputs), targets).backward()
        norm = gradient_norm(optimizers.parameters)
        nn.utils.clip_grads_with_norm_(optimizers.parameters, CLIP, norm, foreach=True)
        optimizers.step(learning_rate(schedule, steps, progress))
        steps += 1
    model.eval()
    return steps


def learning_rate(schedule: Schedule, step: int, progress: float) -> float:
    """The factor on the highest: `wsd` as Fractus's own, `cosine` down to a tenth."""
    if schedule == "wsd":
        return warmup_stable_decay(step, progress, warmup_steps=WARMUP, decay_from=0.3, final=0.05)
    return min(1.0, (step + 1) / WARMUP) * (0.55 + 0.45 * math.cos(math.pi * progress))


def size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def of_equal_size(make: Callable[[int], M], widths: Sequence[int], parameters: int) -> M:
    """The module, of those that `make` makes of `widths`, that is nearest to so many parameters."""

    def distance(width: int) -> int:
        with torch.device("meta"):
            return abs(size(make(width)) - parameters)

    return make(min(widths, key=distance))
