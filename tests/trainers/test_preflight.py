"""The memory that `gpu1b` foretells, against what is really taken."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from running import ENGINE, TEXT, one_line, write_corpus
from toys import lane, options

from fractus_bench.memory import peak_mb
from fractus_bench.training import RandomTokens
from fractus_core.api import Batch, ContinuousThoughtEngine, EngineConfig, Frontend
from fractus_core.cli.main import main
from fractus_core.engine import PRESETS
from fractus_text.embedding import TiedEmbedding
from fractus_trainers import gpu1b
from fractus_trainers.half import HalfWeights
from fractus_trainers.objective import Objective
from fractus_trainers.preflight import Build, Estimate, estimate, largest_batch

VOCABULARY = 1024


def building(preset: str, **changed: Any) -> Build:
    config = EngineConfig(**PRESETS[preset] | changed)

    def build() -> tuple[ContinuousThoughtEngine, list[Frontend]]:
        torch.manual_seed(0)
        head: Any = TiedEmbedding(VOCABULARY, config.d_model)
        return ContinuousThoughtEngine(config), [head]

    return build


def foretold(build: Build, batch_size: int, **given: Any) -> Estimate:
    return estimate(build, options("gpu1b", device="cpu", **given), batch_size)


def kept(build: Build, rows: int, chunk_len: int, half: bool) -> int:
    """Bytes that autograd keeps of a real forward pass, parameters left out."""
    engine, [head] = build()
    objective = Objective(engine, [head], options()).train()
    weights = HalfWeights(objective)
    left_out = {p.untyped_storage().data_ptr() for p in objective.parameters()}
    left_out |= {p.untyped_storage().data_ptr() for p in weights.copies.values()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in left_out:
            storages[storage.data_ptr()] = storage
        return tensor

    tokens = torch.randint(VOCABULARY, (rows, chunk_len + 1))
    batch = Batch(tokens[:, :-1], tokens[:, 1:], torch.zeros(rows, dtype=torch.bool))
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        if half:
            with weights.in_place():
                objective(0, batch, engine.initial_state(rows), half)
        else:
            objective(0, batch, engine.initial_state(rows), half)
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("preset", ["stage0", "stage1", "stage2"])
def test_activations_are_what_autograd_keeps(preset: str, precision: str) -> None:
    """But for what it need not keep, such as the gradients that the head makes at once, and for
    how tokens are padded on a CPU."""
    build = building(preset, n_layers=2)
    found = foretold(build, 8, precision=precision, chunk_len=32)
    assert found.activations == pytest.approx(kept(build, 8, 32, precision == "bf16"), rel=0.2)


@pytest.mark.parametrize(
    ("optimizer", "numbers"), [("sgd", 1), ("adamw", 2), ("rmsprop", 1), ("muon", 1)]
)
def test_what_is_kept_of_each_weight(optimizer: str, numbers: int) -> None:
    build = building("stage0")
    found = foretold(build, 2, optimizer=optimizer, precision="bf16")
    modules: list[Any] = [build()[0], *build()[1]]
    sizes = [p.numel() for module in modules for p in module.parameters()]
    buffers = sum(b.nbytes for module in modules for b in module.buffers())
    assert 4 * sum(sizes) <= found.weights <= 4 * sum(sizes) + buffers + 1e6
    assert found.gradients == pytest.approx(4 * sum(sizes), rel=0.02)
    extra = 4 * VOCABULARY * 128 if optimizer == "muon" else 0  # AdamW, for the embedding
    assert found.optimizer == pytest.approx(numbers * 4 * sum(sizes) + extra, rel=0.03)
    large = 2 * sum(size for size in sizes if size >= 2**14)
    assert found.copies == pytest.approx(large, rel=0.1)
    assert foretold(build, 2, precision="fp32").copies == 0


@pytest.mark.slow
def test_options_that_save_memory_do() -> None:
    build = building("stage1")
    usual = foretold(build, 8, optimizer="sgd")
    assert foretold(build, 8, optimizer="sgd", momentum=0.0).optimizer < 0.01 * usual.optimizer
    assert foretold(build, 8, checkpointing=True).activations < 0.4 * usual.activations
    assert foretold(build, 8, pgsu=1).gradients < 0.5 * usual.gradients
    assert foretold(build, 8, precision="bf16").activations < 0.75 * usual.activations


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": "sgd", "precision": "bf16"},
        {"optimizer": "muon", "precision": "fp32"},
        {"optimizer": "adamw", "precision": "bf16", "checkpointing": True},
        {"optimizer": "rmsprop", "precision": "bf16", "accumulation_steps": 2},
        {"optimizer": "adamw", "precision": "fp32", "pgsu": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [4, pytest.param(24, marks=pytest.mark.slow)])
def test_the_worst_moment_is_what_a_step_allocates(rows: int, given: dict[str, Any]) -> None:
    """As torch's own allocator counts it, in a real step that comes after two others.

    On a CPU tokens are padded on their way to the experts, as it happens; that is not foretold.
    """
    build = building("stage1")
    given = given | {"reset_probability": 1.0}
    wanted = options("gpu1b", device="cpu", chunk_len=32, batch_size=rows, **given)
    engine, [head] = build()
    trainer = gpu1b.Gpu1bTrainer(wanted, seed=0)
    trainer.prepare(engine, [lane(engine, head, RandomTokens(VOCABULARY, rows, 32))])
    steps = trainer.train(lambda: 0.0)
    for _ in range(2):
        next(steps)
    found = estimate(build, wanted, rows)
    kept = found.weights + found.copies + found.optimizer + found.streams
    assert (found.worst - kept) / 1e6 == pytest.approx(peak_mb(lambda: next(steps)), rel=0.15)


@pytest.mark.slow
def test_a_billion_parameters_are_estimated_in_little_memory() -> None:
    before = psutil.Process().memory_info().rss
    found = foretold(building("1b"), 1, optimizer="sgd", precision="bf16")
    assert psutil.Process().memory_info().rss - before < 5e8
    assert found.weights > 4e9
    assert found.worst > 13e9


# ---------------------------------------------------------------------------- the largest that fits


@pytest.mark.parametrize(
    "worst",
    [
        lambda b: 100 + 7 * b,
        lambda b: 100 + 30 * min(b, 5) + 2 * b,
        lambda b: 100 + 2 * b + 30 * max(0, b - 20),
        lambda b: int(100 + 50 * math.sqrt(b)),
        lambda b: 1000 if b > 1 else 10,
    ],
)
@pytest.mark.parametrize("begin", [1, 8, 500])
@pytest.mark.parametrize("allowed", [5, 120, 301.5, 900])
def test_the_largest_is_found(worst: Callable[[int], int], begin: int, allowed: float) -> None:
    calls = []

    def counted(batch_size: int) -> int:
        calls.append(batch_size)
        return worst(batch_size)

    fitting = [b for b in range(1, 2000) if worst(b) <= allowed]
    assert largest_batch(counted, allowed, begin) == max(fitting, default=0)
    assert len(calls) < 30


# ------------------------------------------------------------------------------ on the command line

GPU1B = (
    *(*TEXT, *ENGINE, "--preset", "stage0", "--trainer", "gpu1b", "--device", "cpu"),
    *("--gpu1b.threads", "1", "--gpu1b.chunk_len", "4", "--steps", "2"),
)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    def set_to(size: float) -> None:
        monkeypatch.setattr(gpu1b, "free_memory", lambda device: int(size))

    return set_to


@pytest.mark.slow
def test_what_does_not_fit_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free: Callable[[float], None]
) -> None:
    corpus, out = write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "run"
    start = ["run", "--data", str(corpus), "--out", str(out), *GPU1B]
    free(6e6)
    for more in ([], ["--dry-run"]):
        assert main([*start, "--gpu1b.batch_size", "9999", *more]) == 1
        line = one_line(capsys.readouterr().err)
        assert "9999 needs" in line and "of 0.006 GB that are free 0.0054 can be used" in line
        assert not out.exists()
    largest = line.rpartition(" ")[2]
    assert int(largest) > 1
    assert main([*start, "--gpu1b.batch_size", largest, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "at the worst moment" in told and "free" in told
    free(1e5)
    assert main(start) == 1
    assert "not even one row fits" in one_line(capsys.readouterr().err)


def test_the_batch_is_chosen_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], free: Callable[[float], None]
) -> None:
    corpus, out = write_corpus(tmp_path / "corpus.jsonl"), tmp_path / "run"
    free(6e6)
    start = ["run", "--data", str(corpus), "--out", str(out), *GPU1B, "--gpu1b.auto_batch"]
    assert main(start) == 0
    assert "at the worst moment" in capsys.readouterr().err
    chosen = json.loads((out / "run.json").read_text())["trainer"]["options"]
    assert chosen["batch_size"] > 1
    assert chosen["auto_batch"] is False
    free(9e6)  # a resumed run goes on with what was chosen
    assert main(["run", "--resume", str(out), "--steps", "4"]) == 0
    assert json.loads((out / "run.json").read_text())["trainer"]["options"] == chosen
