"""What does not fit a brain is refused in one line, and leaves no trace."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from running import (
    Command,
    contents,
    kill_after_step,
    lines_written,
    one_line,
    resume,
    start,
    wait_until,
)

from fractus_core.cli.main import main

OPTIONS = ("--steps", "4", "--sync-every", "2")


@pytest.fixture
def grown(tmp_path: Path, corpus: Path, brain: Path) -> Path:
    """A brain with the lane `text`, of the run `first`."""
    assert main(start(corpus, tmp_path / "first", *OPTIONS, "--brain", str(brain))) == 0
    return brain


def refusal(capsys: pytest.CaptureFixture[str], args: list[str], code: int = 1) -> str:
    capsys.readouterr()
    assert main(args) == code
    line = one_line(capsys.readouterr().err)
    assert "--debug" not in line
    return line


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_another_architecture(
    tmp_path: Path, corpus: Path, grown: Path, capsys: pytest.CaptureFixture[str], how: tuple[str]
) -> None:
    before, out = contents(grown), tmp_path / "run"
    other = ("--set", "d_model=40", "--set", "decay=none", "--brain", str(grown))
    line = refusal(capsys, start(corpus, out, *OPTIONS, *other, *how))
    assert line == (
        f"fractus: error: the brain {grown} has d_model 32 (this run: 40), decay golden "
        "(this run: none): start with --set d_model=32 --set decay=golden"
    )
    assert contents(grown) == before
    assert not out.exists()


@pytest.mark.parametrize("rule", ["mean", "sum", "nesterov"])
def test_another_rule(
    tmp_path: Path, corpus: Path, grown: Path, capsys: pytest.CaptureFixture[str], rule: str
) -> None:
    before, out = contents(grown), tmp_path / "run"
    line = refusal(capsys, start(corpus, out, *OPTIONS, "--brain", str(grown), "--merge", rule))
    assert line == (
        f"fractus: error: the brain {grown} merges by auto, not by {rule}: leave out --merge"
    )
    assert contents(grown) == before
    assert not out.exists()


def test_the_rule_stays(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brained = (*OPTIONS, "--brain", str(brain))
    assert main(start(corpus, tmp_path / "one", *brained, "--merge", "nesterov")) == 0
    assert main(start(corpus, tmp_path / "two", *brained)) == 0
    assert main(start(corpus, tmp_path / "three", *brained, "--merge", "nesterov")) == 0
    capsys.readouterr()
    assert main(["brain", "status", str(brain)]) == 0
    assert "6 exchanges by 3 lanes, merged by nesterov" in capsys.readouterr().out
    bad = start(corpus, tmp_path / "four", *brained, "--merge", "median")
    assert "'median'" in refusal(capsys, bad, 2)


# ------------------------------------------------------------------------------------------- lanes


def test_a_name_that_is_taken(
    tmp_path: Path, corpus: Path, grown: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, out = contents(grown), tmp_path / "run"
    line = refusal(capsys, start(corpus, out, *OPTIONS, "--brain", str(grown), "--lane", "text"))
    assert line == (
        f"fractus: error: the brain {grown} has a lane 'text' already, of the run "
        f"{tmp_path / 'first'}: give another --lane, or go on with it by --resume"
    )
    assert contents(grown) == before
    assert not out.exists()
    assert main(start(corpus, out, *OPTIONS, "--brain", str(grown), "--lane", "second")) == 0


def test_a_name_of_a_run_that_has_given_nothing_yet(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has a checkpoint, and goes on from there."""
    first = tmp_path / "first"
    brained = ("--brain", str(brain), "--sync-every", "4", "--steps", "5")
    kill_after_step(3, start(corpus, first, *brained, "--checkpoint-every", "2"))
    other = start(corpus, tmp_path / "other", *brained)
    assert "has a lane 'text' already" in refusal(capsys, [*other, "--lane", "text"])
    assert main(other) == 0
    capsys.readouterr()
    assert main(resume(first)) == 0
    assert "lane text with" in capsys.readouterr().err
    assert main(["brain", "status", str(brain)]) == 0
    assert "4 exchanges by 2 lanes" in capsys.readouterr().out


def test_a_run_that_could_not_be_written_leaves_its_name(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("x")
    brained = (*OPTIONS, "--brain", str(brain), "--lane", "eyes")
    line = refusal(capsys, start(corpus, tmp_path / "file" / "run", *brained))
    assert str(tmp_path / "file") in line
    assert main(start(corpus, tmp_path / "run", *brained)) == 0


def test_another_run_has_the_name_now(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Since the first was out of sight, and had given nothing."""
    first, hidden = tmp_path / "first", tmp_path / "hidden"
    brained = ("--brain", str(brain), "--sync-every", "4", "--steps", "5", "--lane", "eyes")
    kill_after_step(3, start(corpus, first, *brained, "--checkpoint-every", "2"))
    first.rename(hidden)
    assert main(start(corpus, tmp_path / "second", *brained)) == 0
    before, run = contents(brain), contents(hidden)
    line = refusal(capsys, resume(hidden))
    assert line == (
        f"fractus: error: lane 'eyes' of {brain} is the run {tmp_path / 'second'}'s: this run had "
        "given nothing; start it anew"
    )
    assert contents(brain) == before
    assert contents(hidden) == run


def test_a_lane_in_training(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, copy = tmp_path / "run", tmp_path / "copy"
    brained = ("--minutes", "10", "--brain", str(brain), "--lane", "eyes")
    command = Command(start(corpus, out, *brained), tmp_path / "log")
    wait_until(lambda: lines_written(out))
    copy.mkdir()
    (copy / "run.json").write_bytes((out / "run.json").read_bytes())
    for args in (resume(copy, "--steps", "1"), start(corpus, tmp_path / "other", *brained)):
        line = refusal(capsys, args)
        assert "lane 'eyes'" in line
        assert str(brain) in line
    assert not (tmp_path / "other").exists()
    assert command.running
    command.signal(signal.SIGKILL)
    command.wait()
    # A process that was killed holds no lock.
    assert main(resume(out, "--steps", "1")) == 0


@pytest.mark.parametrize("name", ["../x", "a/b", ".x", "a b", "x" * 65, "-x", "ä"])
def test_bad_names(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = tmp_path / "run"
    line = refusal(capsys, start(corpus, out, "--brain", str(brain), f"--lane={name}"), 2)
    assert "--lane" in line
    assert repr(name) in line
    assert not brain.exists()
    assert not out.exists()


@pytest.mark.parametrize(
    "option", [("--lane", "x"), ("--sync-every", "5"), ("--merge", "mean")], ids=lambda o: o[0]
)
def test_without_a_brain(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    out = tmp_path / "run"
    line = refusal(capsys, start(corpus, out, *option), 2)
    assert line == f"fractus: error: {option[0]} goes with --brain"
    assert not out.exists()


def test_never_exchanging(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = start(corpus, tmp_path / "run", "--brain", str(brain), "--sync-every", "0")
    assert "--sync-every" in refusal(capsys, args, 2)


# --------------------------------------------------------------------------------------- the place


@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_something_else_is_there(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str], how: tuple[str]
) -> None:
    brain.mkdir()
    (brain / "thesis.tex").write_text("x")
    before = contents(brain)
    line = refusal(capsys, start(corpus, tmp_path / "run", "--brain", str(brain), *how))
    assert f"{brain} is no brain and not empty" in line
    assert contents(brain) == before
    assert not (brain / ".lock").exists()
    assert not (tmp_path / "run").exists()


def test_a_file_is_there(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brain.write_text("x")
    line = refusal(capsys, start(corpus, tmp_path / "run", "--brain", str(brain)))
    assert str(brain) in line
    assert brain.read_text() == "x"
    assert not (tmp_path / "run").exists()


def test_an_empty_folder_will_do(tmp_path: Path, corpus: Path, brain: Path) -> None:
    """Also with what a process left that was killed while it made a brain."""
    brain.mkdir()
    (brain / ".lock").touch()
    (brain / ".brain.json.123").write_text('{"for')
    assert main(start(corpus, tmp_path / "run", *OPTIONS, "--brain", str(brain))) == 0


def test_a_dry_run_joins_nothing(tmp_path: Path, corpus: Path, brain: Path) -> None:
    args = start(corpus, tmp_path / "run", "--steps", "4", "--brain", str(brain), "--dry-run")
    assert main(args) == 0
    assert not brain.exists()
