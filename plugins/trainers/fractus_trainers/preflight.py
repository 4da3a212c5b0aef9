"""How much memory an optimizer step will take, before any of it is taken.

Two steps are worked with tensors that have shapes and no contents, and every allocation is counted:
what autograd keeps, what the optimizer makes, and the worst moment of all. What is compiled takes
less, and is not told apart.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import cast

import psutil
import torch
from torch import Tensor, nn

from fractus_core.api import (
    Batch,
    ContinuousThoughtEngine,
    Frontend,
    Json,
    Resampler,
    Score,
)
from fractus_trainers.half import HalfWeights
from fractus_trainers.ledger import pretending
from fractus_trainers.objective import Objective
from fractus_trainers.optimizers import gradient_norm, make_optimizers
from fractus_trainers.turns import give_turns

Build = Callable[[], tuple[ContinuousThoughtEngine, Sequence[Frontend]]]
MOST = 2**20
"""No batch is tried that is larger."""
TRUST = 6
"""Tries after which it is not taken to be linear any more."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """In bytes. The worst moment is less than all the rest, which is never there together."""

    weights: int
    copies: int
    optimizer: int
    gradients: int
    activations: int
    """Kept for the backward pass."""
    logits: int
    """There in the forward pass alone, with what else is."""
    streams: int
    worst: int

    def parted(self, count: int, gathered: int) -> Estimate:
        """Of one of `count` ranks with an equal part of weights, optimizer and gradients each, and
        besides them `gathered` bytes that are whole for a while."""
        shares = {
            name: math.ceil(getattr(self, name) / count)
            for name in ("weights", "optimizer", "gradients")
        }
        gone = sum(getattr(self, name) - share for name, share in shares.items())
        return dataclasses.replace(self, **shares, worst=self.worst - gone + gathered)

    def lines(self, free: int) -> list[str]:
        """A table."""
        sizes = {
            "weights, fp32": self.weights,
            "their copies, bf16": self.copies,
            "optimizer state": self.optimizer,
            "gradients": self.gradients,
            "activations": self.activations,
            "logits": self.logits,
            "streams' state": self.streams,
            "at the worst moment": self.worst,
            "free": free,
        }
        return [f"  {name:<20}{size / 1e9:>9.3f} GB" for name, size in sizes.items()]


class Unknown(nn.Module):
    """Stands for a front-end that reads no answers: its weights count, its own work does not."""

    def __init__(self, frontend: Frontend, d_model: int) -> None:
        super().__init__()
        self.frontend = cast(nn.Module, frontend)
        self.vector = nn.Parameter(torch.zeros(d_model))

    def embed(self, observations: Tensor) -> Tensor:
        return self.vector.expand(*observations.shape, -1)

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        wrong = torch.zeros(len(hidden), dtype=torch.bool)
        return Score(hidden.float().mean(), targets.numel(), wrong)


def estimate(build: Build, options: Json, batch_size: int) -> Estimate:
    """Of the trainer's `options`, with the first of the front-ends at work."""
    # A real tensor, for it steers the loop.
    position = torch.zeros(batch_size, dtype=torch.int64)
    with pretending() as ledger:
        engine, frontends = build()
        engine.checkpointing = options["checkpointing"]
        width = engine.config.d_model
        known = [f if isinstance(f, Resampler) else Unknown(f, width) for f in frontends]
        objective = Objective(engine, cast(Sequence[Frontend], known), options).train()
        weights = ledger.bytes
        bf16 = options["precision"] == "bf16"
        half = HalfWeights(objective) if bf16 and options["parallel"] == "none" else None
        copies = ledger.bytes - weights
        states = [engine.initial_state(batch_size) for _ in frontends]
        streams = ledger.bytes - weights - copies
        optimizers = make_optimizers(
            options["optimizer"],
            [objective],
            lr=options["lr"],
            weight_decay=options["weight_decay"],
            momentum=options["momentum"],
        )
        state = dataclasses.replace(states[0], position=position)

        def read_chunk() -> tuple[int, int]:
            """Bytes that the forward pass leaves, and that it took besides."""
            tokens = torch.zeros(batch_size, options["chunk_len"], dtype=torch.int64)
            batch = Batch(tokens, tokens, torch.zeros(batch_size, dtype=torch.bool))
            begun = state.map(Tensor.clone)  # as where some rows start anew
            before = ledger.bytes
            with nullcontext() if half is None else half.in_place():
                outcome = objective(0, batch, begun, bf16)
                left, most = ledger.bytes - before, ledger.peak - before
                outcome.objective.backward()
            return left, most - left

        def step() -> None:
            gradient_norm(optimizers.parameters)
            optimizers.step(1.0)

        read_chunk()
        step()  # which makes the optimizer's state
        persistent = ledger.bytes
        if options["pgsu"]:
            give_turns(list(engine.blocks), 0, options["pgsu"])
        if half is not None:
            half.refresh()
        ledger.mark()
        activations, logits = read_chunk()
        gradients = ledger.bytes - persistent
        if options["accumulation_steps"] > 1 or options["ss_rate"]:
            read_chunk()
        step()
        return Estimate(
            weights=weights,
            copies=copies,
            optimizer=persistent - weights - copies - streams,
            gradients=gradients,
            activations=activations,
            logits=logits,
            streams=streams,
            worst=ledger.peak,
        )


def whole_at_once(build: Build) -> int:
    """Bytes that `fsdp2` puts together at the worst moment: what is outside of blocks, and two
    blocks, of which one is on its way; and the gradients of what computes."""
    with pretending():
        engine, frontends = build()
        heads = cast(list[nn.Module], list(frontends))
        block = max(map(_bytes, engine.blocks))
        outside = sum(map(_bytes, [engine, *heads])) - sum(map(_bytes, engine.blocks))
    return 2 * outside + 3 * block


def _bytes(module: nn.Module) -> int:
    return sum(p.nbytes for p in module.parameters())


def largest_batch(worst: Callable[[int], int], allowed: float, begin: int) -> int:
    """The largest batch size whose worst moment is allowed, or 0; `worst` is about linear in it."""
    sizes = {1: worst(1)}
    if sizes[1] > allowed:
        return 0
    good, bad, guess = 1, MOST, max(2, begin)
    while bad - good > 1:
        sizes[guess] = worst(guess)
        good, bad = (guess, bad) if sizes[guess] <= allowed else (good, guess)
        other = bad if bad in sizes else max(size for size in sizes if size < good or size == 1)
        slope = (sizes[other] - sizes[good]) / (other - good) if other != good else 0
        reach = (allowed - sizes[good]) / slope if slope > 0 else good
        guess = min(max(good + int(reach), good + 1), bad - 1)
        if len(sizes) > TRUST:
            guess = (good + bad) // 2
    return good


def free_memory(device: torch.device) -> int:
    """In bytes."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return psutil.virtual_memory().available
