"""Several processes compute what one does with the same rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from running import metrics, write_corpus
from torchrunning import cursors, distance, job, losses, run_in, started

SGD = ("--gpu1b.optimizer", "sgd", "--gpu1b.lr", "3e-4")
MUON = ("--gpu1b.optimizer", "muon", "--gpu1b.lr", "1e-5")
"""Its steps are computed in bf16."""
RMSPROP = ("--gpu1b.optimizer", "rmsprop", "--gpu1b.lr", "1e-5")
BALANCE = ("--gpu1b.lb_coef", "1")
"""A part of the objective that is no mean over rows."""
EQUAL = 1e-5
Alone = Callable[..., Path]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Alone:
    """The run of one process with these options, which is made once."""
    folder = tmp_path_factory.mktemp("alone")
    corpus = write_corpus(folder / "corpus.jsonl")

    def run(*options: str) -> Path:
        out = folder / " ".join(("with", *options))
        if not out.exists():
            run_in(1, started(corpus, out, *options), folder / "log")
        return out

    return run


def compare(alone: Alone, many: Path, corpus: Path, how: str, *options: str) -> float:
    """The distance of the run of two processes to that of one."""
    one = alone(*options)
    run_in(2, started(corpus, many, *options, "--parallel", how), many.with_name("log"))
    assert cursors(many) == cursors(one)
    assert losses(many) == pytest.approx(losses(one), rel=1e-4)
    return distance(one, many)


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_several_equal_one(tmp_path: Path, corpus: Path, alone: Alone, how: str) -> None:
    assert compare(alone, tmp_path / "many", corpus, how, *BALANCE) < EQUAL


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "optimizer"),
    [
        # Alone of them, it shows a gradient that is too large.
        pytest.param("ddp", SGD, id="ddp-sgd"),
        pytest.param("ddp", MUON, id="ddp-muon"),
        pytest.param("fsdp2", SGD, id="fsdp2-sgd"),
        pytest.param("fsdp2", MUON, id="fsdp2-muon"),
        pytest.param("fsdp2", RMSPROP, id="fsdp2-rmsprop"),
    ],
)
def test_every_optimizer(
    tmp_path: Path, corpus: Path, alone: Alone, how: str, optimizer: list[str]
) -> None:
    assert compare(alone, tmp_path / "many", corpus, how, *optimizer) < EQUAL


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_as_torchrun_starts_it(tmp_path: Path, corpus: Path, alone: Alone, how: str) -> None:
    """One of two speaks; nothing but its own is shown."""
    many = tmp_path / "many"
    with job(2, started(corpus, many, "--parallel", how, "--tensorboard")) as running:
        code, out, err = running.wait()
    assert code == 0, err
    assert distance(alone(), many) < EQUAL
    assert out.count("finished: 20 steps") == err.count(f"run {many}: ") == 1
    assert f"2 processes, parallel {how}" in err
    assert "arning" not in err
    assert sorted(path.name for path in many.iterdir() if path.name != ".lock") == sorted(
        ["run.json", "metrics.jsonl", "checkpoints", "summary.json", "tensorboard"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_practice_on_own_answers_in_bf16(
    tmp_path: Path, corpus: Path, alone: Alone, how: str
) -> None:
    """Which of them is drawn by each rank for itself: the same in the mean alone."""
    options = ("--gpu1b.precision", "bf16", "--gpu1b.ss_rate", "0.5", "--gpu1b.lr", "0.003")
    one, many = alone(*options), tmp_path / "many"
    run_in(2, started(corpus, many, *options, "--parallel", how), tmp_path / "log")
    assert losses(many) == pytest.approx(losses(one), rel=0.05)
    assert losses(many)[-1] < 0.9 * losses(many)[0]
    assert all(any("ss_loss" in line for line in metrics(out)) for out in (one, many))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_with_accumulated_and_checkpointed_chunks_and_random_resets(
    tmp_path: Path, corpus: Path, alone: Alone, how: str
) -> None:
    chunks = ("--gpu1b.accumulation_steps", "2", "--gpu1b.checkpointing")
    options = (*chunks, "--gpu1b.reset_probability", "0.4")
    assert compare(alone, tmp_path / "many", corpus, how, *options) < EQUAL


@pytest.mark.slow
def test_two_lanes(tmp_path: Path, corpus: Path) -> None:
    """Each step leaves the other lane's front-end unused. The stem without batch norm, whose
    statistics are of each process alone, and each token at every expert, so that none can choose
    another."""
    data = ("--frontend", "text", "--frontend", "vision", "--data", "vision=glyphs")
    data = (*data, "--vision.stem", "patch", "--set", "top_k=4", "--set", "n_layers=1")

    def args(name: str) -> list[str]:
        made = started(corpus, tmp_path / name, *data)
        made[made.index("--data") + 1] = f"text={corpus}"
        return made

    run_in(1, args("one"), tmp_path / "log")
    for how in ("ddp", "fsdp2"):
        run_in(2, [*args(how), "--parallel", how], tmp_path / "log")
        assert distance(tmp_path / "one", tmp_path / how) < EQUAL
        assert cursors(tmp_path / how) == cursors(tmp_path / "one")
