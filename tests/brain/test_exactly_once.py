"""Whenever a lane's process dies, what it has learnt gets into the brain, and once.

A single lane on a brain is deterministic: resumed, it and the brain end bit for bit as they would
have.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brains import Kept, assert_kept_same, assert_same_weights, kept, killed_at
from running import (
    AS_TEXT,
    PROSE,
    TINY,
    TOKENS,
    Left,
    after_step,
    assert_same,
    kill_after_step,
    killed_anywhere,
    left,
    metrics,
    resume,
    start,
    write_corpus,
)

from fractus_core.brain.directory import BrainDirectory
from fractus_core.brain.lane import BrainLane
from fractus_core.cli.main import main
from fractus_core.runs.directory import RunDirectory

if TYPE_CHECKING:
    from conftest import Site

STEPS = 10
OPTIONS = (*("--steps", str(STEPS)), *("--sync-every", "4"), *("--checkpoint-every", "3"))
"""Checkpoints at steps 3, 4, 7, 8 and 10, exchanges at 4, 8 and 10."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Left, Kept]:
    """A run that was never stopped, and its brain."""
    folder = tmp_path_factory.mktemp("whole")
    corpus = write_corpus(folder / "corpus.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        args = start(corpus, folder / "run", *OPTIONS, "--brain", str(folder / "brain"))
        assert main(args) == 0
    return left(folder / "run"), kept(folder / "brain")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def args(corpus: Path, out: Path, brain: Path) -> list[str]:
    return start(corpus, out, *OPTIONS, "--brain", str(brain))


def test_the_whole(whole: tuple[Left, Kept]) -> None:
    run, brain = whole
    lines = [line for line in run.values["metrics"] if line["kind"] == "exchange"]
    assert [(line["step"], line["exchange"]) for line in lines] == [(4, 2), (8, 3), (10, 4)]
    assert brain.number == 4
    assert brain.lanes["text"]["tokens"] == STEPS * TOKENS
    assert brain.lanes["text"]["exchanges"] == 3
    # The only lane's brain is what it has learnt, but for rounding.
    for name, tensor in brain.tensors.items():
        assert tensor.allclose(run.tensors[name], atol=1e-6), name


POINTS = [
    *((BrainDirectory, "write", number) for number in (1, 2, 4)),
    (RunDirectory, "create", 1),
]
"""Calls that a whole run makes: to join, to exchange first and last, and to be there itself."""


@pytest.mark.parametrize(
    ("owner", "name", "number", "when"),
    [
        pytest.param(*point, when, id=f"{when} {point[1]} {point[2]}")
        for point in POINTS
        for when in ("before", "after")
    ],
)
def test_killed_around_what_is_written(
    args: list[str],
    out: Path,
    brain: Path,
    whole: tuple[Left, Kept],
    owner: Any,
    name: str,
    number: int,
    when: str,
) -> None:
    with killed_at(owner, name, number, when):
        main(args)
    assert_made_up_for(args, out, brain, whole)


@pytest.mark.slow
def test_killed_at_every_change_on_the_disk(
    tmp_path: Path, corpus: Path, whole: tuple[Left, Kept]
) -> None:
    folder, states = tmp_path / "folder", 0
    out, brain = folder / "run", folder / "brain"
    args = start(corpus, out, *OPTIONS, "--brain", str(brain))
    for _ in killed_anywhere(args, folder, tmp_path):
        states += 1
        if out.exists() and not (out / "run.json").exists():
            shutil.rmtree(out)  # which is no run yet
        assert_made_up_for(args, out, brain, whole)
    assert states > 100


def assert_made_up_for(args: list[str], out: Path, brain: Path, whole: tuple[Left, Kept]) -> None:
    """Whatever a process that died has left, going on ends as if it had not died."""
    begun = (out / "run.json").exists()
    joined = any(path.name.isdigit() for path in (brain / "exchanges").glob("*"))
    if not (out / "summary.json").exists():
        assert main(resume(out) if begun else args) == 0
    found, grown = left(out), kept(brain)
    if begun or not joined:
        assert_same(found, whole[0])
        assert_kept_same(grown, whole[1])
    else:  # it has joined twice, and counts from there
        assert grown.number == whole[1].number + 1
        assert_same_weights(grown.tensors, whole[1].tensors)
        assert_same_weights(found.tensors, whole[0].tensors)
    [record] = grown.lanes.values()
    assert record["tokens"] == found.values["info"]["spent"]["tokens"] == STEPS * TOKENS
    assert (record["steps"], record["exchanges"]) == (STEPS, 3)
    assert [path for path in (brain / "exchanges").iterdir() if path.name[0] == "."] == []


@pytest.mark.parametrize(
    "steps",
    [(1,), (2, 2, 3), (5, 6, 8), (4, 9), pytest.param(range(1, 11), marks=pytest.mark.slow)],
)
def test_killed_in_training(
    args: list[str], out: Path, brain: Path, whole: tuple[Left, Kept], steps: tuple[int, ...]
) -> None:
    """Before the first checkpoint, between exchanges and at the step of one; again and again."""
    command = args
    for step in steps:
        kill_after_step(step, command)
        command = resume(out)
    assert main(command) == 0
    assert_same(left(out), whole[0])
    assert_kept_same(kept(brain), whole[1])


def test_killed_at_every_exchange_in_turn(
    args: list[str], out: Path, brain: Path, whole: tuple[Left, Kept]
) -> None:
    command = args
    with killed_at(BrainDirectory, "write", 2, "after"):
        main(command)
    for owner, name, number, when in (
        (BrainLane, "_take", 1, "before"),  # of what was given
        (BrainLane, "_take", 1, "after"),
        (BrainDirectory, "write", 1, "before"),  # the next time
        (BrainDirectory, "write", 1, "after"),
        (BrainDirectory, "write", 1, "after"),  # the last
        (BrainLane, "_take", 1, "before"),
        (BrainLane, "_take", 1, "after"),
    ):
        with killed_at(owner, name, number, when):
            main(resume(out))
        assert not (out / "summary.json").exists()
    assert main(resume(out)) == 0
    assert_same(left(out), whole[0])
    assert_kept_same(kept(brain), whole[1])


def test_a_lane_of_two_front_ends(tmp_path: Path, corpus: Path, brain: Path, site: Site) -> None:
    site.plugin("acme", PROSE.format(target=AS_TEXT))

    def begin(name: str, brain: Path) -> list[str]:
        return [
            *("run", "--frontend", "text", "--frontend", "prose", "--out", str(tmp_path / name)),
            *("--data", f"text={corpus}", "--data", f"prose={corpus}", "--brain", str(brain)),
            *(*TINY, *OPTIONS),
        ]

    assert main(begin("whole", tmp_path / "other brain")) == 0
    out = tmp_path / "run"
    with killed_at(BrainDirectory, "write", 2, "after"):
        main(begin("run", brain))
    kill_after_step(7, resume(out))
    assert main(resume(out)) == 0
    assert_same(left(out), left(tmp_path / "whole"))
    assert_kept_same(kept(brain), kept(tmp_path / "other brain"))
    assert {name.partition("/")[0] for name in kept(brain).tensors} == {
        *("engine", "frontend-text", "frontend-prose"),
    }
    assert kept(brain).lanes["text"]["frontends"] == ["prose", "text"]


def test_the_end_is_told_once(
    args: list[str], out: Path, brain: Path, whole: tuple[Left, Kept]
) -> None:
    """The last figures are of what the run itself has learnt, also when that was given already."""
    with killed_at(BrainDirectory, "write", 4, "after"):
        main(args)
    before = kept(brain)
    assert main(resume(out)) == 0
    assert_kept_same(kept(brain), before)
    assert (
        json.loads((out / "summary.json").read_text())["frontends"]
        == whole[0].values["summary"]["frontends"]
    )


# ------------------------------------------------------------------------- interrupted and extended


def test_an_interrupted_lane_gives_what_it_has(args: list[str], out: Path, brain: Path) -> None:
    with after_step(6, lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(args) == 130
    record = kept(brain).lanes["text"]
    assert (record["tokens"], record["exchanges"]) == (6 * TOKENS, 2)
    assert main(resume(out)) == 0
    record = kept(brain).lanes["text"]
    assert (record["tokens"], record["exchanges"]) == (STEPS * TOKENS, 4)
    told = [line["step"] for line in metrics(out) if line["kind"] == "exchange"]
    assert told == [4, 6, 8, 10]


def test_an_extended_lane_goes_on_from_the_brain(
    tmp_path: Path, args: list[str], out: Path, brain: Path, corpus: Path
) -> None:
    """It takes what the others have given since."""
    assert main(args) == 0
    other = start(corpus, tmp_path / "other", *OPTIONS, "--brain", str(brain), "--seed", "1")
    assert main(other) == 0
    grown = kept(brain)
    with after_step(STEPS + 1, lambda: os.kill(os.getpid(), signal.SIGINT)):
        assert main(resume(out, "--steps", "14", "--cpu.lr", "0")) == 2  # fixed
        assert main(resume(out, "--steps", "14")) == 130
    base = {
        name.removeprefix("base/engine."): tensor
        for name, tensor in left(out).tensors.items()
        if name.startswith("base/engine.")
    }
    engine = {
        name.removeprefix("engine/"): tensor
        for name, tensor in grown.tensors.items()
        if name.startswith("engine/")
    }
    assert_same_weights(base, engine)
    assert main(resume(out)) == 0
    lanes = kept(brain).lanes
    assert lanes["text"]["tokens"] == 14 * TOKENS
    assert lanes["text-2"]["tokens"] == STEPS * TOKENS


def test_an_older_checkpoint_does_not_give_again(
    args: list[str], out: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is learnt twice is given twice, and counted so; the rest is not."""
    kill_after_step(9, args)  # the newest is of step 8
    (out / "checkpoints" / str(8 * TOKENS) / "engine.safetensors").unlink()
    before = kept(brain)
    assert main(resume(out, "--steps", "8", "--allow-previous")) == 0  # from step 7
    assert "resumed at step 7" in capsys.readouterr().err
    after = kept(brain)
    assert after.number == before.number + 1
    assert before.lanes["text"]["tokens"] == 8 * TOKENS
    assert after.lanes["text"]["tokens"] == 9 * TOKENS
