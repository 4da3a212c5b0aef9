"""Small models that have learnt something, and their growth in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fractus_core.engine import ContinuousThoughtEngine, EngineConfig, EngineState
from fractus_core.growth.growth import Growth, Trees
from fractus_core.growth.model import GROWTHS
from fractus_core.growth.target import steps, target
from fractus_text.embedding import TiedEmbedding

V = 11
SIZES: dict[str, Any] = {
    "d_model": 16,
    "n_heads": 2,
    "n_layers": 2,
    "n_experts": 4,
    "expert_rank": 8,
    "d_ff": 16,
    "n_oscillators": 4,
    "coupling_rank": 2,
    "thought_stride": 7,
}


@dataclass
class Small:
    """An engine with a tied embedding, as text has."""

    engine: ContinuousThoughtEngine
    frontend: nn.Module

    @property
    def modules(self) -> dict[str, nn.Module]:
        return {"engine": self.engine, "frontend-text": self.frontend}

    def trees(self) -> Trees:
        return {name: dict(module.state_dict()) for name, module in self.modules.items()}

    def parameters(self) -> dict[str, nn.Parameter]:
        return {
            f"{module}/{name}": parameter
            for module, part in self.modules.items()
            for name, parameter in part.named_parameters()
        }

    def read(self, tokens: Tensor, state: EngineState) -> tuple[Tensor, Tensor, EngineState]:
        """Logits (B, C, V), lb, and the state after."""
        assert isinstance(self.frontend, TiedEmbedding)
        hidden, lb, state = self.engine.tick_chunk_train(self.frontend.embed(tokens), state)
        return self.frontend.answer(hidden), lb, state

    def gradients(self, tokens: Tensor, state: EngineState) -> Trees:
        """Of the loss of predicting the next token, lb, and the confidence."""
        for parameter in self.parameters().values():
            parameter.grad = None
        assert isinstance(self.frontend, TiedEmbedding)
        hidden, lb, _ = self.engine.tick_chunk_train(self.frontend.embed(tokens[:, :-1]), state)
        logits = self.frontend.answer(hidden)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        doubt = self.engine.confidence_logit(hidden).sigmoid().mean()
        (loss + 0.02 * lb + 0.1 * doubt).backward()
        return {
            module: {
                name: p.grad.clone() for name, p in part.named_parameters() if p.grad is not None
            }
            for module, part in self.modules.items()
        }


def tokens(rows: int, length: int, seed: int = 0) -> Tensor:
    """Something to learn: each token follows from the two before it, with exceptions."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(V, (rows, length), generator=draw)
    for t in range(2, length):
        ruled = (2 * found[:, t - 1] + found[:, t - 2]) % V
        found[:, t] = ruled.where(torch.rand(rows, generator=draw) < 0.8, found[:, t])
    return found


def untrained(config: EngineConfig, seed: int = 0) -> Small:
    torch.manual_seed(seed)
    return Small(ContinuousThoughtEngine(config), TiedEmbedding(V, config.d_model))


def trained(seed: int = 0, steps: int = 25, **changes: Any) -> Small:
    model = untrained(EngineConfig(**SIZES | changes), seed)
    optimizer = torch.optim.AdamW(model.parameters().values(), lr=0.01)
    for step in range(steps):
        model.gradients(tokens(8, 33, step), model.engine.initial_state(8))
        optimizer.step()
    return model


@torch.no_grad()
def warm(model: Small) -> EngineState:
    """Three streams that began at different times, one of them just now."""
    state = model.engine.initial_state(3)
    _, _, state = model.read(tokens(3, 19, seed=100), state)
    _, _, state = model.read(
        tokens(3, 10, seed=101), state.reset(torch.tensor([False, True, False]))
    )
    return state.reset(torch.tensor([False, False, True]))


@dataclass
class Grown:
    model: Small
    growths: list[Growth]

    def state(self, state: EngineState) -> EngineState:
        for growth in self.growths:
            state = growth.state(state)
        return state

    def moments(self, trees: Trees, power: int) -> Trees:
        for growth in self.growths:
            trees = growth.moments(trees, power)
        return trees


def grow(model: Small, fields: Mapping[str, Any], seed: int = 5) -> Grown:
    engine = target(model.engine.config, fields)
    draw = torch.Generator().manual_seed(seed)
    growths = []
    for kind, before, after in steps(model.engine.config, engine):
        larger = untrained(after, seed)
        growth = GROWTHS[kind](before, after, larger.trees(), draw)
        trees = growth.weights(model.trees())
        for name, module in larger.modules.items():
            module.load_state_dict(trees[name])
        growths.append(growth)
        model = larger
    return Grown(model, growths)


@torch.no_grad()
def difference(model: Small, grown: Grown, length: int = 40) -> Tensor:
    """Of the logits (3, C, V) with which a warm stream goes on, absolute."""
    state = warm(model)
    went_on = tokens(3, length, seed=200)
    expected, _, after = model.read(went_on, state)
    found, _, after_grown = grown.model.read(went_on, grown.state(state))
    assert math.isfinite(float(found.abs().max()))
    # And on and on: the grown state after is the state after, grown.
    more = tokens(3, 8, seed=201)
    again, _, _ = model.read(more, after)
    found_again, _, _ = grown.model.read(more, after_grown)
    return torch.cat([found - expected, found_again - again], 1).abs()
