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

import pytest
import torch
from running import (
    Command,
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
STEPS = ("--steps", "24")


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
    tmp_path: Path, corpus: Path, number: signal.Signals
) -> None:
    out = tmp_path / "the run"  # a name that a shell would split
    command = Command(start(corpus, out, *STEPS), tmp_path / "log")
    wait_until(lambda: lines_written(out) >= 3)
    command.signal(number)
    code, stdout, err = command.wait()
    assert code == 130
    assert stdout == ""
    first, second = err.splitlines()[-2:]
    steps = left(out).steps
    assert 6 <= steps < 24
    assert first.startswith(f"interrupted at step {steps} (")
    words = shlex.split(second)
    assert words == ["fractus", "run", "--resume", str(out)]
    assert not (out / "summary.json").exists()

    assert main(words[1:]) == 0
    assert main(start(corpus, tmp_path / "whole", *STEPS)) == 0
    assert_same(left(out), left(tmp_path / "whole"))


def test_json_is_printed_when_interrupted(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    command = Command(start(corpus, out, *STEPS, "--json"), tmp_path / "log")
    wait_until(lambda: lines_written(out) >= 1)
    command.signal(signal.SIGINT)
    code, stdout, _ = command.wait()
    assert code == 130
    report = json.loads(stdout)
    assert report.keys() == {"directory", "finished", "steps", "tokens", "seconds"}
    assert report["directory"] == str(out)
    assert report["finished"] is False
    assert report["steps"] == left(out).steps


def test_a_signal_in_the_last_evaluation(tmp_path: Path, corpus: Path) -> None:
    """All is trained and saved; resuming makes the evaluation."""
    out = tmp_path / "run"
    command = Command(
        start(corpus, out, *STEPS, "--eval-every", "1000"),
        tmp_path / "log",
        before=signal_in_evaluation,
    )
    code, _, err = command.wait()
    assert code == 130
    assert "interrupted at step 24" in err
    assert left(out).steps == 24
    assert not (out / "summary.json").exists()
    assert main(resume(out)) == 0
    assert main(start(corpus, tmp_path / "whole", *STEPS, "--eval-every", "1000")) == 0
    assert_same(left(out), left(tmp_path / "whole"))


def signal_in_evaluation() -> None:
    evaluate = evaluation.evaluate

    def interrupted(*args: object, **kwargs: object) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*args, **kwargs)  # type: ignore[arg-type]

    evaluation.evaluate = interrupted  # type: ignore[assignment]


def test_a_signal_before_the_first_step(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    command = Command(start(corpus, out, *STEPS), tmp_path / "log", before=signal_at_once)
    assert command.wait()[0] == 130
    assert left(out).steps == 0
    assert main(resume(out)) == 0
    assert main(start(corpus, tmp_path / "whole", *STEPS)) == 0
    assert_same(left(out), left(tmp_path / "whole"))


def signal_at_once() -> None:
    train = Run._train

    def interrupted(run: Run, *args: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        train(run, *args)  # type: ignore[arg-type]

    Run._train = interrupted  # type: ignore[method-assign, assignment]


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_at_once(tmp_path: Path, corpus: Path, number: signal.Signals) -> None:
    """What was saved before stays good, even if the second comes in the middle of a save."""
    out = tmp_path / "run"
    command = Command(
        start(corpus, out, "--steps", "1000", "--checkpoint-every", "5"),
        tmp_path / "log",
        before=partial(signal_twice, number),
    )
    code, _, err = command.wait(20)
    assert "Traceback" not in err
    if number == signal.SIGTERM:
        assert code == -signal.SIGTERM
    else:
        assert code == 130
        # It cannot claim the step of which there is no checkpoint.
        assert f"fractus run --resume {out}" in err
        assert "step 7" not in err.splitlines()[-2]
    assert left(out).steps == 5
    whole = start(corpus, tmp_path / "whole", "--steps", "12", "--checkpoint-every", "5")
    assert main(whole) == 0
    assert main(resume(out, "--steps", "12")) == 0


def signal_twice(number: signal.Signals) -> None:
    """The first at step 7, the second in the save that follows."""
    account, save_tree = Run._account, checkpoint.save_tree

    def first(run: Run, *args: object) -> None:
        account(run, *args)  # type: ignore[arg-type]
        if run.spent.steps == 7:
            os.kill(os.getpid(), number)
            checkpoint.save_tree = second

    def second(path: Path, tree: object) -> None:
        save_tree(path, tree)
        os.kill(os.getpid(), number)
        time.sleep(5)

    Run._account = first  # type: ignore[method-assign, assignment]


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
    assert err.endswith(f"resume with\n  fractus run --resume {out}\n")
    assert "Traceback" not in err
    assert newest(out) == str(left(out).values["info"]["spent"]["tokens"])
    assert main(resume(out, "--steps", str(left(out).steps + 1))) == 0


def test_nothing_is_left_by_a_signal_while_it_starts(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    command = Command(start(corpus, out, *STEPS), tmp_path / "log", before=signal_in_making)
    code, _, err = command.wait()
    assert code == 130
    assert err.splitlines()[-1] == "fractus: interrupted"
    assert not out.exists()


def signal_in_making() -> None:
    seed = torch.manual_seed

    def interrupted(number: int) -> object:
        os.kill(os.getpid(), signal.SIGINT)
        return seed(number)

    torch.manual_seed = interrupted  # type: ignore[assignment]
