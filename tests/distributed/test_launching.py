"""What torchrun and `--parallel` do not go with is said in one line, before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from running import one_line
from torchrunning import started

from fractus_core.cli.main import main

DDP = ("--parallel", "ddp")
PLAIN = ("--trainer", "cpu")


def start_as(monkeypatch: pytest.MonkeyPatch, rank: str, world: str) -> None:
    """What torchrun tells a process; nobody is there."""
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in {**place, "RANK": rank, "WORLD_SIZE": world}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), ["2 processes", "'gpu1b'", "--parallel ddp or fsdp2"]),
        ((*DDP, "--stages", "0,1"), ["--stages", "torchrun"]),
        ((*DDP, "--grow-from", "x"), ["--grow-from", "torchrun"]),
        ((*DDP, "--brain", "x"), ["--brain", "torchrun"]),
        (("--parallel", "dp"), ["'dp'", "'ddp'"]),
    ],
)
def test_under_torchrun(
    tmp_path: Path,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    words: list[str],
) -> None:
    args = started(corpus, tmp_path / "run", *options)
    if "--stages" in options:
        del args[args.index("--preset") : args.index("--preset") + 2]
    for rank in ("1", "0"):
        start_as(monkeypatch, rank, "2")
        assert main(args) == 2
        told = capsys.readouterr()
        assert told.out == ""
        if rank == "1":
            assert told.err == ""
    line = one_line(told.err)
    assert all(word in line for word in words), line
    assert not (tmp_path / "run").exists()


def test_a_trainer_of_one_process(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["run", "--data", str(corpus), "--out", str(tmp_path / "run"), *DDP]
    assert main(args) == 2
    assert "--parallel ddp: trainer 'cpu' computes in one process only" in one_line(
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--gpu1b.pgsu", "1"), ["--gpu1b.pgsu 1", "--parallel none"]),
        (("--gpu1b.cuda_graphs", "--gpu1b.compile"), ["--gpu1b.cuda_graphs", "--parallel none"]),
    ],
)
def test_options_of_the_trainer(
    tmp_path: Path,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    words: list[str],
) -> None:
    """In one process too, since the run may go on in several."""
    assert main(started(corpus, tmp_path / "run", *DDP, *options)) == 1
    line = one_line(capsys.readouterr().err)
    assert all(word in line for word in words), line


def test_a_run_of_one_process_goes_on_in_one(
    tmp_path: Path,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    assert main(started(corpus, out, "--steps", "1")) == 0
    capsys.readouterr()
    start_as(monkeypatch, "0", "2")
    monkeypatch.setattr("fractus_core.runs.ranks.join", lambda: None)
    monkeypatch.setattr("fractus_core.runs.ranks.leave", lambda: None)
    assert main(["run", "--resume", str(out), "--steps", "2"]) == 2
    line = one_line(capsys.readouterr().err)
    assert "2 processes" in line
    assert "go on without torchrun" in line


@pytest.mark.parametrize(
    ("rank", "world"), [("0", "two"), ("", "2"), ("2", "2"), ("-1", "2"), ("0", "0")]
)
def test_variables_that_make_no_sense(
    rank: str, world: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_as(monkeypatch, rank, world)
    assert main(["--version"]) == 0
    assert main(["trainers"]) == 1
    line = one_line(capsys.readouterr().err)
    assert f"RANK={rank}, WORLD_SIZE={world}" in line and "torchrun" in line


def test_variables_that_are_not_all_of_torchrun(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["trainers"]) == 0
    assert "gpu1b" in capsys.readouterr().out


def test_other_commands_are_of_one_process(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    start_as(monkeypatch, "0", "2")
    assert main(["eval", "somewhere"]) == 2
    assert "2 processes, and 'eval' computes in one" in one_line(capsys.readouterr().err)
