"""A run finds its brain and its data again where they are now, or says that they are not these."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from brains import kept
from running import TOKENS, assert_same, contents, left, one_line, resume, start, write_corpus

from fractus_core.cli.main import main

NO_DECAY = ("--cpu.decay_from", "0", "--cpu.final_lr", "1")
OPTIONS = ("--steps", "4", "--sync-every", "3", *NO_DECAY)


@pytest.fixture
def out(tmp_path: Path, corpus: Path, brain: Path) -> Path:
    """A run that has grown a brain."""
    assert main(start(corpus, tmp_path / "run", *OPTIONS, "--brain", str(brain))) == 0
    return tmp_path / "run"


def refusal(capsys: pytest.CaptureFixture[str], args: list[str], code: int = 1) -> str:
    capsys.readouterr()
    assert main(args) == code
    line = one_line(capsys.readouterr().err)
    assert "--debug" not in line
    return line


# ------------------------------------------------------------------------------------- its brain


def test_a_brain_that_was_moved(tmp_path: Path, out: Path, brain: Path) -> None:
    moved = brain.rename(tmp_path / "elsewhere")
    assert main(resume(out, "--steps", "8", "--brain", str(moved))) == 0
    assert json.loads((out / "run.json").read_text())["brain"]["directory"] == str(moved)
    assert main(resume(out, "--steps", "9")) == 0  # it stays there
    record = kept(moved).lanes["text"]
    assert (record["tokens"], record["exchanges"]) == (9 * TOKENS, 5)
    assert not brain.exists()


def test_a_brain_that_is_gone(out: Path, brain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(brain)
    before = contents(out)
    line = refusal(capsys, resume(out, "--steps", "8"))
    told = f"fractus: error: the run's brain is not at {brain}: say with --brain where it is; "
    assert line.startswith(told)
    assert contents(out) == before
    assert not brain.exists()


def test_another_brain(
    tmp_path: Path, corpus: Path, out: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a lane of the same name."""
    other = tmp_path / "other"
    assert main(start(corpus, tmp_path / "stranger", *OPTIONS, "--brain", str(other))) == 0
    ids = [json.loads((path / "brain.json").read_text())["id"] for path in (other, brain)]
    run, brains = contents(out), (contents(brain), contents(other))
    line = refusal(capsys, resume(out, "--steps", "8", "--brain", str(other)))
    assert f"{other} is another brain: its id is {ids[0]}, the run's brain has {ids[1]}" in line
    assert contents(out) == run
    assert (contents(brain), contents(other)) == brains


def test_an_older_copy_of_the_brain(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not have the lane."""
    assert main(start(corpus, tmp_path / "one", *OPTIONS, "--brain", str(brain))) == 0
    copy = shutil.copytree(brain, tmp_path / "copy")
    out = tmp_path / "two"
    assert main(start(corpus, out, *OPTIONS, "--brain", str(brain), "--lane", "eyes")) == 0
    line = refusal(capsys, resume(out, "--steps", "8", "--brain", str(copy)))
    assert line == f"fractus: error: the brain {copy} has no lane 'eyes'"


def test_a_brain_that_goes_while_a_lane_trains(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from running import after_step

    out = tmp_path / "run"
    with after_step(4, lambda: brain.rename(tmp_path / "moved")):
        line = refusal(
            capsys, start(corpus, out, "--steps", "9", "--sync-every", "3", "--brain", str(brain))
        )
    assert str(brain) in line
    assert line.endswith(
        f"; the checkpoint of step 6 is good; go on with fractus run --resume {out}"
    )
    assert main(resume(out, "--brain", str(tmp_path / "moved"))) == 0
    record = kept(tmp_path / "moved").lanes["text"]
    assert (record["tokens"], record["exchanges"]) == (9 * TOKENS, 3)


def test_a_run_without_a_brain_gets_none(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "2")) == 0
    line = refusal(capsys, resume(out, "--steps", "4", "--brain", str(brain)))
    assert line == "fractus: error: the run has no brain: leave out --brain"
    assert not brain.exists()


@pytest.mark.parametrize("option", [("--lane", "x"), ("--sync-every", "5"), ("--merge", "mean")])
def test_what_is_fixed(
    out: Path, brain: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    line = refusal(capsys, resume(out, "--brain", str(brain), *option), 2)
    assert f"{option[0]} is fixed when a run starts" in line


# --------------------------------------------------------------------------------------- its data


@pytest.mark.parametrize("with_brain", [True, False])
def test_data_that_was_moved(tmp_path: Path, corpus: Path, brain: Path, with_brain: bool) -> None:
    options = (*OPTIONS, "--brain", str(brain)) if with_brain else ("--steps", "4", *NO_DECAY)
    out, still = tmp_path / "run", tmp_path / "still"
    assert main(start(corpus, out, *options)) == 0
    if not with_brain:
        shutil.copytree(out, still)
        assert main(resume(still, "--steps", "8")) == 0
    moved = corpus.rename(tmp_path / "moved.jsonl")
    assert main(resume(out, "--steps", "8", "--data", str(moved))) == 0
    assert json.loads((out / "run.json").read_text())["frontends"][0]["data"] == str(moved)
    if not with_brain:
        assert_same(left(out), left(still))
    assert main(resume(out, "--steps", "9")) == 0
    assert left(out).steps == 9


def test_other_data(
    tmp_path: Path, out: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_corpus(tmp_path / "other.jsonl", seed=1)
    was = json.loads((out / "run.json").read_text())["frontends"][0]["fingerprints"]["train"]
    before, grown = contents(out), contents(brain)
    line = refusal(capsys, resume(out, "--steps", "8", "--data", str(other)))
    assert str(other) in line
    assert was in line
    assert len(re.findall(r"\b[0-9a-f]{64}\b", line)) == 2
    assert contents(out) == before
    assert contents(brain) == grown
