"""Blocks that learn in turn: which, and that the others are left alone."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from toys import Counting, lane, make, options

from fractus_core.api import EngineConfig, FractusError
from fractus_trainers.cpu import CpuTrainer
from fractus_trainers.gpu1b import Gpu1bTrainer
from fractus_trainers.optimizers import DEFAULT_LR

DEEP = EngineConfig(d_model=128, n_layers=4, n_heads=4, d_ff=128, expert_rank=32)


@pytest.mark.parametrize("n_active", [1, 3])
@pytest.mark.parametrize("optimizer", list(DEFAULT_LR))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_active_blocks_move(optimizer: str, precision: str, n_active: int) -> None:
    """Not by momentum nor by weight decay either."""
    engine, frontend = make(DEEP)
    given: dict[str, Any] = {"optimizer": optimizer, "precision": precision, "pgsu": n_active}
    trainer = CpuTrainer(options(warmup_steps=0, **given), seed=0)
    trainer.prepare(engine, [lane(engine, frontend, Counting(3, 6))])
    steps = trainer.train(lambda: 0.0)
    for s in range(9):
        before = copy.deepcopy([block.state_dict() for block in engine.blocks])
        outside = engine.final_norm.weight.detach().clone()
        next(steps)
        moved = [
            any(not torch.equal(tensor, old[name]) for name, tensor in block.state_dict().items())
            for block, old in zip(engine.blocks, before, strict=True)
        ]
        assert moved == [(i - s) % 4 < n_active for i in range(4)]
        assert not torch.equal(engine.final_norm.weight, outside)


def test_gradients_pass_through_frozen_blocks() -> None:
    """The embedding learns as it would if all blocks did."""
    found = {}
    for pgsu in (0, 1):
        engine, frontend = make(DEEP)
        trainer = CpuTrainer(options(optimizer="sgd", clip=0.0, pgsu=pgsu), seed=0)
        trainer.prepare(engine, [lane(engine, frontend, Counting(3, 6))])
        next(trainer.train(lambda: 0.0))
        found[pgsu] = frontend.table.weight.detach().clone()
    assert torch.equal(found[0], found[1])


def test_all_active_is_the_same_as_none_given() -> None:
    told = []
    for pgsu in (0, 4):
        engine, frontend = make(DEEP)
        trainer = Gpu1bTrainer(options("gpu1b", device="cpu", pgsu=pgsu), seed=0)
        trainer.prepare(engine, [lane(engine, frontend, Counting(3, 6))])
        told.append(list(itertools.islice(trainer.train(lambda: 0.0), 3)))
    assert told[0] == told[1]


def test_each_lane_sees_every_block_learn() -> None:
    """Two lanes in turn on two blocks, of which one learns."""
    engine, frontend = make(EngineConfig(d_model=16, n_layers=2, d_ff=32, expert_rank=8))
    lanes = [lane(engine, frontend, Counting(3, 6), name) for name in ("one", "two")]
    trainer = CpuTrainer(options(pgsu=1), seed=0)
    trainer.prepare(engine, lanes)
    seen = set()
    for step in itertools.islice(trainer.train(lambda: 0.0), 4):
        [active] = [
            i for i, b in enumerate(engine.blocks) if all(p.requires_grad for p in b.parameters())
        ]
        seen.add((step.lane, active))
    assert len(seen) == 4


def test_more_than_there_are() -> None:
    engine, frontend = make(DEEP)
    trainer = CpuTrainer(options(pgsu=5), seed=0)
    with pytest.raises(FractusError, match=r"pgsu 5: the engine has 4 blocks"):
        trainer.prepare(engine, [lane(engine, frontend, Counting(3, 6))])
