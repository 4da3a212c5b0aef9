"""The trainer `gpu1b`, on a CPU, against the trainer `cpu`."""

from __future__ import annotations

import copy
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from running import ENGINE, TEXT, after_step, assert_same, left, one_line, write_corpus
from toys import Counting, Table, lane, make, options

from fractus_core.api import ContinuousThoughtEngine, EngineConfig, FractusError, Lane, Step
from fractus_core.cli.main import main
from fractus_core.runs.directory import RunDirectory
from fractus_trainers.cpu import CpuTrainer
from fractus_trainers.gpu1b import Gpu1bTrainer

ROWS, CHUNK = 3, 6
DEEP = EngineConfig(d_model=32, n_layers=3, n_experts=8, d_ff=64, expert_rank=16, thought_stride=4)
needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def ours(**given: Any) -> dict[str, Any]:
    return options("gpu1b", device="cpu", **given)


def train(
    trainer: CpuTrainer | Gpu1bTrainer, engine: ContinuousThoughtEngine, frontend: Table, steps: int
) -> tuple[list[Step], Lane]:
    made = lane(engine, frontend, Counting(ROWS, CHUNK))
    trainer.prepare(engine, [made])
    return list(itertools.islice(trainer.train(lambda: 0.0), steps)), made


# -------------------------------------------------------------------------------- what it computes


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd", "rmsprop"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_it_equals_the_trainer_cpu(optimizer: str, precision: str) -> None:
    modules = make(DEEP)
    given = {"optimizer": optimizer, "precision": precision, "accumulation_steps": 2}
    copies = copy.deepcopy(modules)
    expected, _ = train(CpuTrainer(options(**given), seed=0), *copies, steps=6)
    found, _ = train(Gpu1bTrainer(ours(**given), seed=0), *modules, steps=6)
    assert found == expected
    for module, other in zip(modules, copies, strict=True):
        for p, q in zip(module.parameters(), other.parameters(), strict=True):
            assert torch.equal(p, q)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_checkpointing_changes_the_memory_alone(precision: str) -> None:
    """Fewer bytes are kept for the backward pass; losses, weights and state are the same."""
    told, saved, weights, states = {}, {}, {}, {}
    for checkpointing in (False, True):
        torch.manual_seed(0)
        config = EngineConfig(d_model=128, n_layers=4, n_experts=4, d_ff=128, expert_rank=32)
        engine, frontend = make(config)
        kept = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal kept
            if not isinstance(tensor, torch.nn.Parameter):
                kept += tensor.nbytes
            return tensor

        trainer = Gpu1bTrainer(ours(precision=precision, checkpointing=checkpointing), seed=0)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            told[checkpointing], made = train(trainer, engine, frontend, 3)
        saved[checkpointing] = kept
        weights[checkpointing] = [p.detach() for p in engine.parameters()]
        states[checkpointing] = made.state.blocks[-1].S
    assert told[True] == told[False]
    assert saved[True] < 0.5 * saved[False]
    assert torch.equal(states[True], states[False])
    for p, q in zip(weights[True], weights[False], strict=True):
        assert torch.equal(p, q)


def test_without_momentum_sgd_keeps_nothing() -> None:
    for momentum, buffers in ((0.9, True), (0.0, False)):
        trainer = Gpu1bTrainer(ours(optimizer="sgd", momentum=momentum), seed=0)
        train(trainer, *make(), steps=2)
        [state] = trainer.state_dict()["optimizers"]
        assert any(s.get("momentum_buffer") is not None for s in state["state"].values()) == buffers


def test_phases_stay_in_fp32_however_large() -> None:
    config = EngineConfig(d_model=512, n_layers=1, n_oscillators=64, d_ff=64, expert_rank=8)
    [step], _ = train(Gpu1bTrainer(ours(precision="bf16"), seed=0), *make(config), steps=1)
    assert step.loss > 0


# ---------------------------------------------------------------------------------- what it refuses


@needs_no_gpu
def test_it_never_falls_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, before any data is looked for and anything is written."""
    out = tmp_path / "run"
    for given in ((), ("--dry-run",), ("--stages", "0,1", "--steps", "4")):
        args = ["run", "--trainer", "gpu1b", "--data", "nowhere.txt", "--out", str(out), *given]
        assert main(args) == 1
        line = one_line(capsys.readouterr().err)
        assert "no CUDA device" in line and "--device cpu" in line
    assert list(tmp_path.iterdir()) == []


def test_cuda_graphs_are_for_cuda() -> None:
    with pytest.raises(FractusError, match="cuda_graphs needs --device cuda"):
        Gpu1bTrainer(ours(cuda_graphs=True, compile=True), seed=0)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "--gpu1b.compile"),
        ({"compile": True, "accumulation_steps": 2}, "accumulation_steps 1"),
        ({"compile": True, "ss_rate": 0.1}, "ss_rate 0"),
        ({"compile": True, "checkpointing": True}, "--no-gpu1b.checkpointing"),
    ],
    ids=str,
)
def test_what_cuda_graphs_cannot_do(
    given: dict[str, Any], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(FractusError, match=named):
        Gpu1bTrainer(options("gpu1b", device="cuda", cuda_graphs=True, **given), seed=0)


# ----------------------------------------------------------------------------- on the command line

TINY = (*TEXT, *ENGINE, "--log-every", "2", "--eval-every", "8", "--trainer", "gpu1b")
SETTINGS = {"threads": 1, "batch_size": 4, "chunk_len": 16, "optimizer": "adamw", "lr": 0.004}


def settings(trainer: str, **more: Any) -> list[str]:
    given = (SETTINGS | more).items()
    return [word for name, value in given for word in (f"--{trainer}.{name}", str(value))]


def losses(out: Path) -> list[float]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_it_learns_as_the_trainer_cpu_does(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    curves = []
    for name, more in (("cpu", ()), ("gpu1b", ("--device", "cpu"))):
        out = tmp_path / name
        args = ["run", "--data", str(corpus), "--out", str(out), *TINY[:-1], name, *more]
        args += [*settings(name, precision="fp32", warmup_steps=3), "--preset", "stage0"]
        assert main([*args, "--tokens", "6.4k"]) == 0
        curves.append(losses(out))
    assert curves[1] == pytest.approx(curves[0], rel=1e-6)
    assert len(curves[0]) == 50
    assert curves[0][-1] < 0.8 * curves[0][0]


@pytest.mark.parametrize("more", [{}, {"pgsu": 1, "ss_rate": 0.5}], ids=str)
def test_a_resumed_run_is_the_same(tmp_path: Path, more: dict[str, Any]) -> None:
    """Bit for bit, in bf16."""
    corpus = write_corpus(tmp_path / "corpus.jsonl")

    def begin(out: Path) -> list[str]:
        args = ["run", "--data", str(corpus), "--out", str(out), *TINY, "--device", "cpu"]
        args += ["--preset", "stage0", *settings("gpu1b", **more), "--checkpoint-every", "3"]
        return [*args, "--set", "n_layers=2", "--steps", "14"]

    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert main(begin(whole)) == 0

    class Stop(BaseException):
        pass

    def stop() -> None:
        raise Stop

    with after_step(7, stop), pytest.raises(Stop):
        main(begin(parts))
    assert main(["run", "--resume", str(parts)]) == 0
    assert_same(left(parts), left(whole))


def test_the_device_and_the_size_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus.jsonl")
    common = ["run", "--data", str(corpus), "--out", str(tmp_path / "run")]
    assert main([*common, "--device", "cpu"]) == 2
    assert "trainer 'cpu' computes on cpu only" in one_line(capsys.readouterr().err)
    assert main([*common, "--trainer", "gpu1b", "--device", "tpu"]) == 2
    assert "'tpu' is not one of 'cuda', 'cpu'" in one_line(capsys.readouterr().err)
    for trainer, size in (("cpu", "stage0"), ("gpu1b", "1b")):
        assert main([*common, "--trainer", trainer, "--help"]) == 0
        assert f"[default: {size}]" in capsys.readouterr().out
    assert main([*common, *TINY, "--preset", "stage0", "--device", "cpu", "--steps", "1"]) == 0
    config = RunDirectory(tmp_path / "run").read_config()
    assert config.trainer.options["device"] == "cpu"
