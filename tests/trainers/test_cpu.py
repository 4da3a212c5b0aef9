"""The trainer `cpu` against a training loop of a few lines, on copied weights."""

from __future__ import annotations

import copy
import itertools
import os
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from toys import Counting, Table, lane, make, options

from fractus_core.api import ContinuousThoughtEngine, Lane, Step
from fractus_trainers.cpu import CpuTrainer
from fractus_trainers.optimizers import BETAS, DEFAULT_LR

ROWS, CHUNK = 3, 6
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "warmup_steps": 2, "weight_decay": 0.0}
"""To which, unlike to Adam, the size of a gradient matters."""


def prepared(
    engine: ContinuousThoughtEngine, frontend: Table, seed: int = 0, **given: Any
) -> tuple[CpuTrainer, Lane]:
    trainer = CpuTrainer(options(batch_size=ROWS, chunk_len=CHUNK, **given), seed=seed)
    made = lane(engine, frontend, Counting(ROWS, CHUNK))
    trainer.prepare(engine, [made])
    return trainer, made


def take(trainer: CpuTrainer, number: int, progress: float = 0.0) -> list[Step]:
    return list(itertools.islice(trainer.train(lambda: progress), number))


def by_hand(
    engine: ContinuousThoughtEngine,
    frontend: Table,
    *,
    steps: int,
    accumulation_steps: int = 1,
    head: str = "dense",
    clip: float = 1.0,
    lr: float = 0.004,
    warmup_steps: int = 100,
    weight_decay: float = 0.1,
    lb_coef: float = 0.02,
    confidence_coef: float = 0.1,
    reset_probability: float = 0.05,
    optimizer: str = "adamw",
) -> list[dict[str, float]]:
    """Train; the learning rate rises and does not fall."""
    source = Counting(ROWS, CHUNK)
    generator = torch.Generator().manual_seed(0)
    parameters = [*engine.parameters(), *frontend.parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    descent: torch.optim.Optimizer
    if optimizer == "adamw":
        descent = torch.optim.AdamW(groups, betas=BETAS, foreach=False, fused=False)
    else:
        descent = torch.optim.SGD(groups, momentum=0.9, foreach=False, fused=False)
    state = engine.initial_state(ROWS)
    told = []
    for step in range(steps):
        descent.zero_grad()
        losses, lbs = [], []
        for _ in range(accumulation_steps):
            batch = next(source)
            state = state.reset(
                batch.starts | (torch.rand(ROWS, generator=generator) < reset_probability)
            )
            hidden, lb, state = engine.tick_chunk_train(frontend.table(batch.observations), state)
            state = state.detach()
            logits = frontend.head(hidden)
            if head == "last":
                cross_entropy = F.cross_entropy(logits[:, CHUNK - 1], batch.targets[:, CHUNK - 1])
            else:
                cross_entropy = F.cross_entropy(
                    logits.reshape(ROWS * CHUNK, -1), batch.targets.reshape(ROWS * CHUNK)
                )
            right = (logits[:, -1].argmax(1) == batch.targets[:, -1]).float()
            sure = torch.sigmoid(
                hidden[:, -1].detach() @ engine.confidence_head.weight[0]
                + engine.confidence_head.bias
            )
            doubt = -(right * sure.log() + (1 - right) * (1 - sure).log()).mean()
            whole = cross_entropy + lb_coef * lb + confidence_coef * doubt
            (whole / accumulation_steps).backward()
            losses.append(cross_entropy.item())
            lbs.append(lb.item())
        with_gradient = [p for p in parameters if p.grad is not None]
        norm = sum(float(p.grad.square().sum()) for p in with_gradient) ** 0.5
        if clip and norm > clip:
            for p in with_gradient:
                p.grad *= clip / norm
        for group in descent.param_groups:
            group["lr"] = lr * min(1.0, (step + 1) / (warmup_steps + 1))
        descent.step()
        told.append(
            {
                "loss": sum(losses) / accumulation_steps,
                "lb": sum(lbs) / accumulation_steps,
                "gradient_norm": norm,
                "lr": descent.param_groups[0]["lr"],
            }
        )
    return told


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"accumulation_steps": 4},
        {"head": "last", "accumulation_steps": 2},
        SGD | {"clip": 0.05},
        SGD | {"clip": 0.0},
        {"lr": 0.02, "warmup_steps": 0, "weight_decay": 0.5},
        {"lb_coef": 3.0, "confidence_coef": 0.0, "reset_probability": 0.0},
        {"confidence_coef": 2.0, "reset_probability": 0.5},
    ],
    ids=str,
)
def test_it_equals_a_plain_loop(given: dict[str, Any]) -> None:
    steps = 6
    engine, frontend = make()
    copies = copy.deepcopy((engine, frontend))
    trainer, made = prepared(engine, frontend, **given)
    found = take(trainer, steps)
    expected = by_hand(*copies, steps=steps, **given)

    assert [step.loss for step in found] == pytest.approx([t["loss"] for t in expected], abs=1e-5)
    for name in ("lb", "gradient_norm", "lr"):
        values = [step.figures[name] for step in found]
        assert values == pytest.approx([t[name] for t in expected], rel=1e-3, abs=1e-6), name
    for module, copied in zip((engine, frontend), copies, strict=True):
        for (name, p), q in zip(module.named_parameters(), copied.parameters(), strict=True):
            torch.testing.assert_close(p, q, atol=2e-5, rtol=1e-3, msg=name)
    chunks = steps * given.get("accumulation_steps", 1)
    assert [step.tokens for step in found] == [ROWS * CHUNK * chunks // steps] * steps
    assert made.source.cursor() == {"number": chunks}
    assert {step.lane for step in found} == {"toy"}


def test_the_plain_loop_can_tell() -> None:
    """What the test above compares does differ where something is left out."""
    engine, frontend = make()
    reference = by_hand(*copy.deepcopy((engine, frontend)), steps=6, **SGD)
    for change in (
        {"clip": 0.05},
        {"clip": 0.0},
        {"head": "last"},
        {"reset_probability": 0.5},
        {"lb_coef": 3.0},
        {"confidence_coef": 0.0},
    ):
        other = by_hand(*copy.deepcopy((engine, frontend)), steps=6, **(SGD | change))
        norms = [told[-1]["gradient_norm"] for told in (reference, other)]
        # Where the loops are compared, the tolerance is a thousandth.
        assert norms[1] != pytest.approx(norms[0], rel=0.003), change


def test_the_learning_rate_falls_with_the_progress() -> None:
    trainer, _ = prepared(*make(), lr=0.01, warmup_steps=1, decay_from=0.5, final_lr=0.2)
    steps = trainer.train(iter([0.0, 0.25, 0.5, 0.75, 1.0]).__next__)
    rates = [next(steps).figures["lr"] for _ in range(5)]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.006, 0.002])


# --------------------------------------------------------------------------------- random resets


def resets(probability: float, seed: int) -> Tensor:
    """Which rows (20, ROWS) began anew at each of 20 steps, as their states' positions tell."""
    trainer, made = prepared(*make(), seed=seed, reset_probability=probability)
    steps = trainer.train(lambda: 0.0)
    return torch.stack([made.state.position == CHUNK for _ in itertools.islice(steps, 20)])


def test_streams_begin_anew_as_the_seed_says() -> None:
    given = torch.stack([batch.starts for batch in itertools.islice(Counting(ROWS, CHUNK), 20)])
    assert 3 < given.sum() < 15
    generator = torch.Generator().manual_seed(7)
    drawn = torch.stack([torch.rand(ROWS, generator=generator) < 0.3 for _ in range(20)])
    assert torch.equal(resets(0.3, seed=7), given | drawn)
    assert not torch.equal(resets(0.3, seed=8), given | drawn)
    assert torch.equal(resets(0.0, seed=7), given)
    assert resets(1.0, seed=7).all()


# ------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_other_precisions_learn_on_fp32_weights_and_state(precision: str) -> None:
    engine, frontend = make()
    trainer = CpuTrainer(options(precision=precision, warmup_steps=2, lr=0.01), seed=0)
    made = lane(engine, frontend, Counting(8, 8, learnable=True))
    trainer.prepare(engine, [made])
    losses = [step.loss for step in take(trainer, 20)]
    assert losses[-1] < 0.9 * losses[0]
    tensors = [*engine.parameters(), *frontend.parameters(), made.state.thought]
    tensors += [getattr(block, name) for block in made.state.blocks for name in ("S", "z", "clock")]
    assert {tensor.dtype for tensor in tensors} == {torch.float32}


def test_bf16_is_near_fp32_and_not_the_same() -> None:
    told = {}
    for precision in ("fp32", "bf16"):
        trainer, _ = prepared(*make(), precision=precision, reset_probability=0.0)
        told[precision] = [step.loss for step in take(trainer, 5)]
    assert told["bf16"] == pytest.approx(told["fp32"], abs=0.05)
    assert told["bf16"] != told["fp32"]


def test_choosing_the_precision_neither_learns_nor_reads() -> None:
    engine, frontend = make()
    before = copy.deepcopy([p.detach() for p in (*engine.parameters(), *frontend.parameters())])
    trainer, made = prepared(engine, frontend, precision="auto")
    chosen = trainer.options["precision"]
    assert chosen in ("fp32", "bf16")
    assert made.source.cursor() == {"number": 0}
    assert int(made.state.position.sum()) == 0
    for p, q in zip((*engine.parameters(), *frontend.parameters()), before, strict=True):
        assert torch.equal(p, q)
        assert p.grad is None
    explicit, _ = prepared(*make(), precision=chosen)
    assert take(trainer, 3) == take(explicit, 3)


# ------------------------------------------------------------------------------------ the rest


def test_options_that_were_left_open_are_decided() -> None:
    given = options(lr=0.0, threads=0)
    trainer = CpuTrainer(given, seed=0)
    try:
        assert trainer.options["threads"] == os.cpu_count() == torch.get_num_threads()
    finally:
        torch.set_num_threads(1)
    assert trainer.options["lr"] == DEFAULT_LR["adamw"]
    assert given == options(lr=0.0, threads=0)
    assert CpuTrainer(options(lr=0.5), seed=0).options["lr"] == 0.5


def test_lanes_take_turns_on_one_engine() -> None:
    engine, frontend = make()
    other = Table(engine.config.d_model)
    lanes = [
        lane(engine, frontend, Counting(ROWS, CHUNK), "one"),
        lane(engine, other, Counting(2, 4, seed=1), "two"),
    ]
    trainer = CpuTrainer(options(accumulation_steps=2), seed=0)
    trainer.prepare(engine, lanes)
    found = take(trainer, 5)
    assert [step.lane for step in found] == ["one", "two", "one", "two", "one"]
    assert [step.tokens for step in found] == [2 * ROWS * CHUNK, 2 * 8] * 2 + [2 * ROWS * CHUNK]
    assert [made.source.cursor()["number"] for made in lanes] == [6, 4]


def test_only_the_lane_that_was_read_moves_its_front_end() -> None:
    engine, frontend = make()
    other = Table(engine.config.d_model)
    before = copy.deepcopy(other.state_dict())
    trainer = CpuTrainer(options(), seed=0)
    trainer.prepare(
        engine,
        [lane(engine, frontend, Counting(2, 4), "one"), lane(engine, other, Counting(2, 4), "two")],
    )
    take(trainer, 1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in other.state_dict().items())


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_it_goes_on_from_its_state(optimizer: str) -> None:
    """With everything else restored too, as a run does."""

    def fresh() -> tuple[CpuTrainer, Lane, Any]:
        engine, frontend = make()
        trainer, made = prepared(engine, frontend, optimizer=optimizer, reset_probability=0.3)
        return trainer, made, (engine, frontend)

    trainer, made, modules = fresh()
    take(trainer, 5)
    saved = copy.deepcopy(
        (trainer.state_dict(), [m.state_dict() for m in modules], made.state, made.source.cursor())
    )
    expected = take(trainer, 5)

    again, made, modules = fresh()
    state, weights, made.state, cursor = saved
    again.load_state_dict(state)
    for module, values in zip(modules, weights, strict=True):
        module.load_state_dict(values)
    made.source.seek(cursor)
    assert take(again, 5) == expected
