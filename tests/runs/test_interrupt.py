"""Ctrl-C and SIGTERM: the step is finished, a checkpoint saved, and the way back told."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from running import (
    STEPS,
    TOKENS,
    Command,
    Left,
    after_step,
    assert_same,
    left,
    lines_written,
    newest,
    resume,
    start,
    wait_until,
)

from fractus_core.cli.main import main
from fractus_core.runs import checkpoint, evaluation
from fractus_core.runs.interrupt import Interruption
from fractus_core.runs.run import Run

SIGNALS = [signal.SIGINT, signal.SIGTERM]


# ----------------------------------------------------------------------------------- the class


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_requests_and_the_second_acts_as_before(number: signal.Signals) -> None:
    acted = []
    previous = signal.signal(number, lambda *_: acted.append(1))
    try:
        with Interruption() as interruption:
            assert interruption.requested is None
            signal.raise_signal(number)
            assert interruption.requested == number
            assert acted == []
            signal.raise_signal(number)
            assert acted == [1]
        signal.raise_signal(number)
        assert acted == [1, 1]
    finally:
        signal.signal(number, previous)


def test_handlers_are_put_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyError), Interruption():
        raise KeyError
    assert [signal.getsignal(number) for number in SIGNALS] == before


# ----------------------------------------------------------------------------------- the command


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_saves_and_tells_how_to_go_on(
    tmp_path: Path,
    corpus: Path,
    whole: Left,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    out = tmp_path / "the run"  # a name that a shell would split
    with after_step(7, partial(signal.raise_signal, number)):
        assert main(start(corpus, out, *STEPS)) == 130
    told = capsys.readouterr()
    assert told.out == ""
    assert left(out).steps == 7
    line = told.err.splitlines()[-1]
    before, command = line.split("; go on with ")
    assert before == "interrupted at step 7; the checkpoint of step 7 is good"
    words = shlex.split(command)
    assert words == ["fractus", "run", "--resume", str(out)]
    assert not (out / "summary.json").exists()

    assert main(words[1:]) == 0
    assert_same(left(out), whole)


def test_json_is_printed_when_interrupted(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with after_step(2, partial(signal.raise_signal, signal.SIGINT)):
        assert main(start(corpus, out, *STEPS, "--json")) == 130
    report = json.loads(capsys.readouterr().out)
    assert report.pop("seconds") > 0
    assert report == {
        "directory": str(out),
        "finished": False,
        "steps": 2,
        "tokens": 2 * TOKENS,
    }


def test_a_signal_in_the_last_evaluation(
    tmp_path: Path,
    corpus: Path,
    whole: Left,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All is trained and saved; resuming makes the evaluation."""
    out = tmp_path / "run"
    evaluate = evaluation.evaluate

    def interrupted(*args: Any, limit: int | None, **kwargs: Any) -> Any:
        if limit is None:
            signal.raise_signal(signal.SIGINT)
        return evaluate(*args, limit=limit, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "evaluate", interrupted)
        assert main(start(corpus, out, *STEPS)) == 130
    assert "interrupted at step 20; the checkpoint of step 20 is good" in capsys.readouterr().err
    assert left(out).steps == 20
    assert not (out / "summary.json").exists()
    assert main(resume(out)) == 0
    assert_same(left(out), whole)


def test_a_signal_before_the_first_step(
    tmp_path: Path, corpus: Path, whole: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    train = Run._train

    def interrupted(run: Run, *args: Any) -> None:
        signal.raise_signal(signal.SIGINT)
        train(run, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_train", interrupted)
        assert main(start(corpus, out, *STEPS)) == 130
    assert left(out).steps == 0
    assert main(resume(out)) == 0
    assert_same(left(out), whole)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_at_once(
    tmp_path: Path, corpus: Path, whole: Left, number: signal.Signals
) -> None:
    """What was saved before stays good, even if the second comes in the middle of a save."""
    out = tmp_path / "run"
    command = Command(
        start(corpus, out, *STEPS, "--checkpoint-every", "5"),
        tmp_path / "log",
        before=partial(signal_twice, number),
    )
    code, _, err = command.wait()
    assert "Traceback" not in err
    if number == signal.SIGTERM:
        assert code == -signal.SIGTERM
    else:
        assert code == 130
        # It cannot claim the step of which there is no checkpoint.
        assert err.splitlines()[-1] == (
            "interrupted at step 7; the checkpoint of step 5 is good; "
            f"go on with fractus run --resume {out}"
        )
    assert left(out).steps == 5
    assert main(resume(out)) == 0
    assert_same(left(out), whole)


def signal_twice(number: signal.Signals) -> None:
    """The first at step 7, the second in the save that follows."""
    account, save_tree = Run._account, checkpoint.save_tree

    def first(run: Run, *args: Any) -> None:
        account(run, *args)
        if run.spent.steps == 7:
            os.kill(os.getpid(), number)
            checkpoint.save_tree = second

    def second(path: Path, tree: Any) -> None:
        save_tree(path, tree)
        os.kill(os.getpid(), number)
        time.sleep(60)  # ends here

    Run._account = first  # type: ignore[method-assign]


def test_nothing_is_left_by_a_signal_while_it_starts(
    tmp_path: Path,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    seed = torch.manual_seed

    def interrupted(number: int) -> Any:
        signal.raise_signal(signal.SIGINT)
        return seed(number)

    with monkeypatch.context() as patch:
        patch.setattr(torch, "manual_seed", interrupted)
        assert main(start(corpus, out, *STEPS)) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "fractus: interrupted"
    assert not out.exists()


@pytest.mark.slow
def test_a_shell_sees_the_same(tmp_path: Path, corpus: Path) -> None:
    """The installed command, in a process group of its own that is sent a Ctrl-C."""
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "fractus_core", *start(corpus, out, "--minutes", "5")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: lines_written(out) or process.poll() is not None)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert err.endswith(f"; go on with fractus run --resume {out}\n")
    assert "Traceback" not in err
    assert newest(out) == str(left(out).values["info"]["spent"]["tokens"])
    assert main(resume(out, "--steps", str(left(out).steps + 1))) == 0
