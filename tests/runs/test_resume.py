"""A run that was stopped, however, and gone on with equals one that was not, bit for bit."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from running import (
    STEPS,
    TOKENS,
    Command,
    Killed,
    Left,
    assert_same,
    before_calls,
    contents,
    kill_after_step,
    killed_anywhere,
    left,
    lines_written,
    newest,
    one_line,
    resume,
    start,
    wait_until,
    write_corpus,
)

from fractus_core.cli.main import main
from fractus_core.runs import run as run_module
from fractus_core.runs.metrics import MetricsLog
from fractus_core.runs.run import Run

OPTIONS = (*STEPS, "--checkpoint-every", "3")


def test_two_runs_are_the_same(tmp_path: Path, corpus: Path, whole: Left) -> None:
    """Or else the other tests would say nothing."""
    assert main(start(corpus, tmp_path / "again", *OPTIONS)) == 0
    assert_same(left(tmp_path / "again"), whole)
    assert main(start(corpus, tmp_path / "other", *OPTIONS, "--seed", "1")) == 0
    with pytest.raises(AssertionError):
        assert_same(left(tmp_path / "other"), whole)


def test_the_run_crosses_epochs(whole: Left) -> None:
    assert whole.values["info"]["cursors"]["text"]["epoch"] == 2
    assert whole.steps == 20


@pytest.mark.parametrize(
    "options",
    [
        ("--cpu.optimizer", "muon"),
        pytest.param(("--cpu.optimizer", "sgd", "--cpu.lr", "0.05"), marks=pytest.mark.slow),
        pytest.param(("--cpu.optimizer", "rmsprop"), marks=pytest.mark.slow),
        ("--cpu.precision", "bf16", "--cpu.head", "last"),
        ("--cpu.accumulation_steps", "3", "--cpu.reset_probability", "0.5"),
    ],
)
def test_killed_and_resumed(tmp_path: Path, corpus: Path, options: tuple[str, ...]) -> None:
    steps = ("--steps", "10", "--checkpoint-every", "4")
    assert main(start(corpus, tmp_path / "whole", *steps, *options)) == 0
    out = tmp_path / "killed"
    kill_after_step(7, start(corpus, out, *steps, *options))
    assert newest(out) == str(4 * TOKENS * (3 if "--cpu.accumulation_steps" in options else 1))
    assert main(resume(out)) == 0
    assert_same(left(out), left(tmp_path / "whole"))


def test_killed_before_the_first_checkpoint(tmp_path: Path, corpus: Path, whole: Left) -> None:
    out = tmp_path / "killed"
    kill_after_step(2, start(corpus, out, *OPTIONS))
    assert not (out / "checkpoints").exists()
    assert lines_written(out) == 1
    assert main(resume(out)) == 0
    assert_same(left(out), whole)


def test_killed_again_and_again(tmp_path: Path, corpus: Path, whole: Left) -> None:
    """Also at the step that a checkpoint follows, and before any progress since the last."""
    out = tmp_path / "killed"
    args = start(corpus, out, *OPTIONS)
    for step in (5, 4, 6, 7, 16, 19, 20):
        kill_after_step(step, args)
        args = resume(out)
    assert main(args) == 0
    assert_same(left(out), whole)


def test_killed_in_the_last_evaluation(
    tmp_path: Path, corpus: Path, whole: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "killed"

    def kill(path: Path, value: Any) -> None:
        if path.name == "summary.json":
            raise Killed
        write(path, value)

    write = run_module.write_json
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "write_json", kill)
        with pytest.raises(Killed):
            main(start(corpus, out, *OPTIONS))
    assert lines_written(out) == len(whole.values["metrics"])  # among them, the last evaluation
    assert not (out / "summary.json").exists()
    assert main(resume(out)) == 0
    assert_same(left(out), whole)


# ------------------------------------------------------------------- killed by a signal, anywhere


def kill_at(event: int) -> None:
    """This process, at the so-manieth step, line of metrics, or access to the disk."""
    passed = -1

    def count() -> None:
        nonlocal passed
        passed += 1
        if passed == event:
            os.kill(os.getpid(), signal.SIGKILL)

    before_calls(
        count,
        [
            (Run, "_account"),
            (MetricsLog, "write"),
            (os, "fsync"),
            (Path, "mkdir"),
            (Path, "rename"),
            (Path, "replace"),
            (shutil, "rmtree"),
        ],
    )


def killed_at(event: int, args: list[str], log: Path) -> bool:
    """Run `fractus` with `args` until that event; False if it ended before."""
    code, _, err = Command(args, log, before=partial(kill_at, event)).wait()
    assert code in (0, -signal.SIGKILL), err
    return code != 0


EVENTS = 160
"""At least so many are in a whole run."""


def test_killed_at_random(tmp_path: Path, corpus: Path, whole: Left) -> None:
    kill_and_resume(tmp_path, corpus, kills=3, seed=3)
    assert_same(left(tmp_path / "killed"), whole)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_ten_times_at_random(tmp_path: Path, corpus: Path, whole: Left, seed: int) -> None:
    kill_and_resume(tmp_path, corpus, kills=10, seed=seed)
    assert_same(left(tmp_path / "killed"), whole)


def kill_and_resume(tmp_path: Path, corpus: Path, *, kills: int, seed: int) -> None:
    """Kill the run `killed` so often, each time somewhere in what is left; then let it end."""
    draw, out = random.Random(seed), tmp_path / "killed"
    args = start(corpus, out, *OPTIONS)
    assert killed_at(draw.randrange(30, EVENTS), args, tmp_path / "log")
    for _ in range(kills - 1):
        if not (out / "summary.json").exists():
            killed_at(draw.randrange(60), resume(out), tmp_path / "log")
    if not (out / "summary.json").exists():
        assert main(resume(out)) == 0


@pytest.mark.slow
def test_killed_anywhere(
    tmp_path: Path, corpus: Path, whole: Left, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where one checkpoint is dropped for the next."""
    folder, began = tmp_path / "folder", 0
    out = folder / "run"
    args = start(corpus, out, *STEPS, "--checkpoint-every", "5")
    for _ in killed_anywhere(args, folder, tmp_path):
        if (out / "run.json").exists():
            began += 1
            if not (out / "summary.json").exists():
                assert main(resume(out)) == 0
            assert_same(left(out), whole)
            hidden = [path for path in (out / "checkpoints").iterdir() if path.name[0] == "."]
            assert hidden == []
        else:
            assert began == 0
            capsys.readouterr()
            assert main(resume(out)) == 1
            line = one_line(capsys.readouterr().err)
            assert line == f"fractus: error: {out} is no run: it has no run.json"
    assert began > 45


@pytest.mark.parametrize("place", ["written", pytest.param("renamed", marks=pytest.mark.slow)])
def test_killed_within_a_save(tmp_path: Path, corpus: Path, whole: Left, place: str) -> None:
    out = tmp_path / "killed"
    command = Command(
        start(corpus, out, *OPTIONS), tmp_path / "log", before=partial(kill_in_save, place, 2)
    )
    assert command.wait()[0] == -signal.SIGKILL
    saved = {p.name for p in (out / "checkpoints").iterdir() if p.name.isdigit()}
    second = str(6 * TOKENS)
    assert (second in saved) == (place == "renamed")
    assert newest(out) == str(3 * TOKENS)
    assert main(resume(out)) == 0
    assert_same(left(out), whole)
    assert not [p for p in (out / "checkpoints").iterdir() if p.name.startswith(".")]


def test_killed_between_the_first_checkpoint_and_its_pointer(
    tmp_path: Path, corpus: Path, whole: Left, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "killed"
    command = Command(
        start(corpus, out, *OPTIONS), tmp_path / "log", before=partial(kill_in_save, "renamed", 1)
    )
    assert command.wait()[0] == -signal.SIGKILL
    assert not (out / "checkpoints" / "latest").exists()
    assert main(resume(out)) == 0
    assert "resumed at step 3" in capsys.readouterr().err
    assert_same(left(out), whole)


def kill_in_save(place: str, number: int) -> None:
    """Before checkpoint `number` is renamed, or before it is pointed to."""
    rename, replace = Path.rename, Path.replace
    renamed = 0

    def counting_rename(path: Path, target: Path) -> Path:
        nonlocal renamed
        renamed += 1
        if place == "written" and renamed == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return rename(path, target)

    def watching_replace(path: Path, target: Path) -> Path:
        if Path(target).name == "latest" and renamed == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return replace(path, target)

    Path.rename, Path.replace = counting_rename, watching_replace  # type: ignore[method-assign, assignment]


# -------------------------------------------------------------------------------------- extending


def test_a_finished_run_says_so(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "4")) == 0
    before = contents(out)
    capsys.readouterr()
    for options in ((), ("--steps", "4"), ("--steps", "3"), ("--tokens", str(4 * TOKENS))):
        assert main(resume(out, *options)) == 1
        line = one_line(capsys.readouterr().err)
        assert f"{out} is finished: 4 steps, {4 * TOKENS:,} tokens" in line
        assert "larger --steps" in line
        assert contents(out) == before


def test_larger_steps_extend_a_run(tmp_path: Path, corpus: Path) -> None:
    """With a constant learning rate, to the same weights as a long run's."""
    constant = ("--cpu.decay_from", "0", "--cpu.final_lr", "1", "--eval-every", "1000")
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "5", *constant)) == 0
    assert main(resume(out, "--steps", "13")) == 0
    assert json.loads((out / "run.json").read_text())["budget"]["steps"] == 13
    assert json.loads((out / "summary.json").read_text())["steps"] == 13
    assert main(start(corpus, tmp_path / "long", "--steps", "13", *constant)) == 0
    assert_same(left(out), left(tmp_path / "long"))


def test_a_run_is_extended_before_it_has_finished(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    kill_after_step(7, start(corpus, out, "--steps", "9", "--checkpoint-every", "3"))
    assert main(resume(out, "--tokens", str(11 * TOKENS))) == 0
    config = json.loads((out / "run.json").read_text())
    assert config["budget"] == {"tokens": 11 * TOKENS, "steps": None, "seconds": None}
    assert left(out).steps == 11


def test_the_budget_may_be_spent_already(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run cut short by a smaller budget ends with its evaluation."""
    out = tmp_path / "run"
    kill_after_step(7, start(corpus, out, "--steps", "50", "--checkpoint-every", "3"))
    assert main(resume(out, "--steps", "5")) == 0
    assert f"--resume {out} --steps 12" in capsys.readouterr().out
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["steps"], summary["tokens"]) == (6, 6 * TOKENS)


# --------------------------------------------------------------------------------- what is refused


def test_a_run_in_use_is_refused(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = Command(start(corpus, out, "--minutes", "10"), tmp_path / "log")
    wait_until(lambda: lines_written(out))
    assert main(resume(out)) == 1
    assert one_line(capsys.readouterr().err) == (
        f"fractus: error: {out} is being trained by another process"
    )
    assert command.running
    command.signal(signal.SIGKILL)
    command.wait()
    # A process that was killed holds no lock.
    assert main(resume(out, "--steps", "1")) == 0


def test_changed_data_is_refused(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "4")) == 0
    was = json.loads((out / "run.json").read_text())["frontends"][0]["fingerprints"]["train"]
    before = contents(out)
    write_corpus(corpus, seed=1)
    capsys.readouterr()
    assert main(resume(out, "--steps", "8")) == 1
    line = one_line(capsys.readouterr().err)
    assert str(corpus) in line
    assert was in line
    others = [word for word in re.findall(r"\b[0-9a-f]{64}\b", line) if word != was]
    assert len(others) == 1
    assert contents(out) == before
    # The same data again, and the run goes on.
    write_corpus(corpus, seed=0)
    assert main(resume(out, "--steps", "8")) == 0


def test_missing_data_is_refused(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "4")) == 0
    before = contents(out)
    corpus.unlink()
    assert main(resume(out, "--steps", "8")) == 1
    assert str(corpus) in one_line(capsys.readouterr().err)
    assert contents(out) == before


@pytest.mark.parametrize(
    "option",
    [
        ("--seed", "0"),
        ("--preset", "stage0"),
        ("--set", "n_layers=1"),
        ("--shard", "0/1"),
        ("--mix", "text=1"),
        ("--lane", "x"),
        ("--out", "x"),
        ("--cpu.lr", "0.1"),
        ("--text.tokenizer", "bytes"),
        ("--frontend", "text"),
        ("--trainer", "cpu"),
        ("--checkpoint-every", "5"),
        ("--dry-run",),
    ],
)
def test_what_is_fixed_cannot_be_given_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    assert main(resume(tmp_path / "run", *option)) == 2
    line = one_line(capsys.readouterr().err)
    assert option[0] in line
    assert "--resume" in line


def test_a_run_is_resumed_from_another_folder(
    tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(start(Path(corpus.name), Path("run"), "--steps", "4")) == 0
    monkeypatch.chdir("/")
    assert main(resume(tmp_path / "run", "--steps", "6")) == 0
    (tmp_path / "run").rename(tmp_path / "moved")
    assert main(resume(tmp_path / "moved", "--steps", "8")) == 0
    assert left(tmp_path / "moved").steps == 8
