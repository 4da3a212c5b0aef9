"""A front-end and a source that are as plain as can be, and lanes of them for a trainer."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.api import Batch, ContinuousThoughtEngine, EngineConfig, Lane, Score
from fractus_trainers.plugin import fractus_trainers

VOCABULARY = 11
SMALL = EngineConfig(d_model=16, n_layers=1, d_ff=32, expert_rank=8, thought_stride=5)


USUAL: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 0.004,
    "warmup_steps": 100,
    "decay_from": 0.3,
    "final_lr": 0.05,
    "weight_decay": 0.1,
    "accumulation_steps": 1,
    "clip": 1.0,
    "lb_coef": 0.02,
    "confidence_coef": 0.1,
    "head": "dense",
    "reset_probability": 0.05,
    "threads": 1,
    "precision": "fp32",
}


def options(trainer: str = "cpu", **given: Any) -> dict[str, Any]:
    """All options of a trainer; those not `given` are `USUAL`."""
    [spec] = [spec for spec in fractus_trainers() if spec.name == trainer]
    return {option.name: option.default for option in spec.options} | USUAL | given


class Table(nn.Module):
    """A vector for each token, and another for each answer."""

    uniform_loss = math.log(VOCABULARY)

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, d_model)
        self.head = nn.Linear(d_model, VOCABULARY)

    def embed(self, observations: Tensor) -> Tensor:
        vectors: Tensor = self.table(observations)
        return vectors

    def answer(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.head(hidden)
        return logits

    def score(self, hidden: Tensor, targets: Tensor, *, last: bool = False) -> Score:
        if last:
            hidden, targets = hidden[:, -1:], targets[:, -1:]
        logits = self.answer(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return Score(loss, targets.numel(), logits[:, -1].argmax(-1) == targets[:, -1])


class Counting:
    """Batch n holds tokens drawn from (seed, n); or, if `learnable`, each token follows another."""

    fingerprint = "none"

    def __init__(self, rows: int, chunk_len: int, *, seed: int = 0, learnable: bool = False):
        self.rows, self.chunk_len, self.seed, self.learnable = rows, chunk_len, seed, learnable
        self.number = 0

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> Batch:
        B, C = self.rows, self.chunk_len
        if self.learnable:
            position = self.number * C + torch.arange(C + 1)
            tokens = (3 * torch.arange(B).unsqueeze(1) + position) % VOCABULARY
        else:
            generator = torch.Generator().manual_seed(1000 * self.seed + self.number)
            tokens = torch.randint(VOCABULARY, (B, C + 1), generator=generator)
        # Row 1 starts anew at every third chunk.
        starts = torch.tensor(
            [self.number == 0 or (b == 1 and self.number % 3 == 0) for b in range(B)]
        )
        self.number += 1
        return Batch(tokens[:, :-1], tokens[:, 1:], starts)

    def cursor(self) -> dict[str, int]:
        return {"number": self.number}

    def seek(self, cursor: Any) -> None:
        self.number = cursor["number"]


def make(config: EngineConfig = SMALL, *, seed: int = 0) -> tuple[ContinuousThoughtEngine, Table]:
    torch.manual_seed(seed)
    return ContinuousThoughtEngine(config), Table(config.d_model)


def lane(
    engine: ContinuousThoughtEngine, frontend: Table, source: Counting, name: str = "toy"
) -> Lane:
    return Lane(name, frontend, source, engine.initial_state(source.rows))
