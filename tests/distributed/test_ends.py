"""How a run of several processes ends: finished, killed, interrupted; and that it goes on."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from running import TOKENS, newest, resume, wait_until
from torchrunning import Job, Team, cursors, distance, job, losses, run_in, started

from fractus_core.cli.main import main

LONG = ("--steps", "1000000", "--checkpoint-every", "5")
LOST = "another process of this run has ended, or cannot be reached"
HINT = r"the checkpoint of step ([\d,]+) is good; go on with (.*)"


def has_saved(out: Path, running: Job) -> bool:
    """Twice, so that all ranks know of the first."""
    return len(list((out / "checkpoints").glob("[0-9]*"))) > 1 or not running.running


def of_fractus(err: str) -> list[str]:
    """Its own lines among those of torchrun."""
    return [line for line in err.splitlines() if line.startswith("fractus: ")]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "rank"), [("ddp", 1), ("fsdp2", 0)])
def test_a_killed_process_ends_all_and_the_run_goes_on(
    tmp_path: Path, corpus: Path, how: str, rank: int
) -> None:
    out = tmp_path / "the run"
    with job(2, started(corpus, out, "--parallel", how, *LONG)) as running:
        wait_until(partial(has_saved, out, running))
        killed = time.monotonic()
        running.ranks()[rank].kill()
        code, _, err = running.wait()
        assert time.monotonic() - killed < 30
    assert code == 1
    [line] = of_fractus(err)
    said, prefix = line.split("; ", 1), "" if rank else "rank 1: "
    assert said[0] == f"fractus: {prefix}error: {LOST}"
    step, command = re.fullmatch(HINT, said[1]).groups()  # type: ignore[union-attr]
    words = shlex.split(command)
    assert words[:5] == ["torchrun", "--nproc-per-node", "2", "-m", "fractus_core"]
    assert words[5:] == resume(out)
    steps = int(step.replace(",", ""))
    saved = int(newest(out)) // TOKENS
    assert saved in (steps, steps + 5)  # of which rank 0 may not have come to tell the other
    assert main([*words[5:], "--steps", str(saved + 1)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_torchrun_saves(tmp_path: Path, corpus: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    with job(2, started(corpus, out, "--parallel", "ddp", *LONG)) as running:
        wait_until(partial(has_saved, out, running))
        running.signal(number)
        code, stdout, err = running.wait(30)
    assert code != 0
    assert stdout == ""
    [line] = [line for line in err.splitlines() if line.startswith("interrupted at step")]
    assert line.endswith(
        f"is good; go on with torchrun --nproc-per-node 2 -m fractus_core run --resume {out}"
    )
    assert of_fractus(err) == []
    info = json.loads((out / "checkpoints" / newest(out) / "checkpoint.json").read_text())["info"]
    assert line.startswith(f"interrupted at step {info['spent']['steps']:,}; ")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_it_goes_on_with_another_number_of_processes(
    tmp_path: Path, corpus: Path, how: str
) -> None:
    """What two saved goes on with one, and with four, as if it had never stopped."""
    whole, stopped, log = (tmp_path / name for name in ("whole", "stopped", "log"))
    resets = ("--gpu1b.reset_probability", "0.2", "--log-every", "1")
    run_in(2, started(corpus, whole, "--parallel", how, *resets), log)
    interrupted(started(corpus, stopped, "--parallel", how, *resets), 8, log)
    assert len(losses(stopped)) == 8
    for processes in (1, 4):
        out = shutil.copytree(stopped, tmp_path / f"by {processes}")
        run_in(processes, resume(out), log)
        assert cursors(out) == cursors(whole)
        assert losses(out) == pytest.approx(losses(whole), rel=1e-4)
        assert distance(out, whole) < 1e-5
        assert (out / "summary.json").exists()


def interrupted(args: list[str], step: int, log: Path) -> None:
    """Two processes, of which one is asked to stop at a step."""
    team = Team(2, args, log, before=partial(stop_after, step))
    assert [code for code, _, _ in team.wait()] == [130, 130]


def stop_after(step: int, rank: int) -> None:
    from fractus_core.runs.run import Run

    account = Run._account

    def count(run: Run, *args: object) -> None:
        account(run, *args)  # type: ignore[arg-type]
        if rank == 1 and run.spent.steps == step:
            signal.raise_signal(signal.SIGTERM)

    Run._account = count  # type: ignore[method-assign]


def test_an_error_of_one_process_ends_all(tmp_path: Path, corpus: Path) -> None:
    """The one says what it is, rank 0 how to go on."""
    team = Team(
        2,
        started(corpus, tmp_path / "run", "--parallel", "ddp"),
        tmp_path / "log",
        before=break_down,
    )
    (code, _, err), (other, _, of_other) = team.wait()
    assert (code, other) == (1, 1)
    assert of_fractus(err)[-1].startswith(f"fractus: error: {LOST}; ")
    assert of_fractus(of_other) == [
        "fractus: rank 1: error: step 3: the disk is gone; "
        "there is no checkpoint yet; begin again with torchrun --nproc-per-node 2 -m fractus_core "
        f"run --resume {tmp_path / 'run'}"
    ]


def break_down(rank: int) -> None:
    from fractus_core.api import FractusError
    from fractus_text.source import TokenSource

    read = TokenSource.__next__

    def fail(source: TokenSource) -> object:
        if rank == 1 and source.cursor()["chunk"] == 2:
            raise FractusError("the disk is gone")
        return read(source)

    TokenSource.__next__ = fail  # type: ignore[assignment, method-assign]


@pytest.mark.slow
def test_what_all_find_wrong_is_said_once(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    for number, (options, words) in enumerate(
        [
            (("--gpu1b.batch_size", "3"), ["3 rows", "2 processes", "multiple of 2"]),
            (("--data", "/nowhere"), ["/nowhere"]),
            (("--gpu1b.pgsu", "1"), ["--gpu1b.pgsu 1", "--parallel none"]),
            (
                ("--gpu1b.lr", "1e30", "--gpu1b.clip", "0"),
                ["lower --gpu1b.lr", "again with torchrun"],
            ),
        ]
    ):
        args = started(corpus, out, "--parallel", "ddp", *options)
        if "--data" in options:
            del args[1:3]
        (code, _, err), (other, _, of_other) = Team(2, args, tmp_path / str(number)).wait()
        assert (code, other) == (1, 1)
        [line] = of_fractus(err)
        assert all(word in line for word in words), line
        assert of_fractus(of_other) == []
    # Of the last, what was written is a run.
    assert main(resume(out, "--steps", "1")) in (0, 1)


@pytest.mark.slow
def test_what_the_first_finds_wrong_is_said_before_torchrun_ends_it(
    tmp_path: Path, corpus: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with job(2, started(corpus, out, "--parallel", "ddp")) as running:
        code, _, err = running.wait(60)
    assert code == 1
    [line] = of_fractus(err)
    assert f"{out} exists" in line


@pytest.mark.slow
def test_processes_whose_torchrun_was_killed_save_and_end(tmp_path: Path, corpus: Path) -> None:
    out = tmp_path / "run"
    with job(2, started(corpus, out, "--parallel", "ddp", *LONG)) as running:
        wait_until(partial(has_saved, out, running))
        left_alone = list(running.ranks().values())
        running.signal(signal.SIGKILL)
        _, alive = psutil.wait_procs(left_alone, timeout=30)
    assert alive == []
    steps = int(newest(out)) // TOKENS
    assert main(resume(out, "--steps", str(steps + 1))) == 0
