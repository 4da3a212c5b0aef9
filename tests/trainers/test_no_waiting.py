"""A step on a device that is not there: nothing of it is asked for its value but the figures.

Tensors on the device `meta` have shapes and no contents. What would have to wait for a GPU, because
it needs a value, raises an error on `meta`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from toys import Counting, lane, options

from fractus_core.api import ContinuousThoughtEngine, EngineConfig, Stream
from fractus_text.embedding import TiedEmbedding
from fractus_trainers import optimizers
from fractus_trainers.gpu1b import Gpu1bTrainer
from fractus_trainers.online import OnlineTrainer

ROWS, CHUNK = 3, 6


class Shapes(TorchDispatchMode):
    """Knows the shape of a grouped product in fp32, which torch knows in bf16 only."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._grouped_mm.default:
            a, b, *rest = args
            return func(a.bfloat16(), b.bfloat16(), *rest, **kwargs or {}).float()
        return func(*args, **kwargs or {})


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    # What runs on a CUDA device but not on `meta`.
    monkeypatch.setattr(
        torch.nn.utils.clip_grad, "_device_has_foreach_support", lambda device: True
    )
    monkeypatch.setattr(
        optimizers, "AdamW", lambda groups, fused, **rest: torch.optim.AdamW(groups, **rest)
    )
    monkeypatch.setattr(torch, "autocast", lambda *args, **kwargs: nullcontext())
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)
    with Shapes():  # type: ignore[no-untyped-call]
        yield


def trained(**given: Any) -> Any:
    config = EngineConfig(d_model=32, n_layers=2, d_ff=32, expert_rank=8, thought_stride=4)
    with torch.device("meta"):
        engine, head = ContinuousThoughtEngine(config), TiedEmbedding(11, 32)
    trainer = Gpu1bTrainer(options("gpu1b", device="cpu", precision="fp32", **given), seed=0)
    trainer.device = torch.device("meta")
    made = lane(engine, head, Counting(ROWS, CHUNK))  # type: ignore[arg-type]
    trainer.prepare(engine, [made])
    steps = trainer.train(lambda: 0.0)
    return [next(steps) for _ in range(3)], made


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"accumulation_steps": 2},
        {"ss_rate": 1.0},
        {"pgsu": 1},
        {"checkpointing": True},
        {"optimizer": "muon"},
        {"reset_probability": 1.0},
        {"head": "last"},
    ],
    ids=str,
)
def test_a_step_waits_once(monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]) -> None:
    asked = []

    def read(trainer: OnlineTrainer, norm: torch.Tensor, chunks: Any) -> dict[str, float]:
        assert norm.device.type == chunks[0].loss.device.type == "meta"
        asked.append(norm)
        return {"loss": 1.0, "gradient_norm": 1.0, "lb": 0.0}

    monkeypatch.setattr(OnlineTrainer, "_read_figures", read)
    steps, made = trained(**given)
    assert len(asked) == len(steps) == 3
    assert made.state.device.type == "meta"
    assert made.state.position.device.type == "cpu"
    assert "device_memory_mb" in steps[0].figures


def test_it_would_be_noticed() -> None:
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        trained()


def test_a_stream_takes_observations_from_anywhere() -> None:
    """As people and samplers make them on the CPU."""
    config = EngineConfig(d_model=32, n_layers=1, d_ff=32, expert_rank=8)
    with torch.device("meta"):
        engine, head = ContinuousThoughtEngine(config), TiedEmbedding(11, 32)
    stream, tokens = Stream(engine, head), torch.zeros(1, 5, dtype=torch.int64)
    for logits, _ in (
        stream.read(tokens),
        stream.tick(tokens[:, 0]),
        stream.tick_chunk_train(tokens),
    ):
        assert logits.device.type == "meta"
