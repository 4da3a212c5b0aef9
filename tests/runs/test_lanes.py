"""A run with two front-ends: their lanes take turns on one engine, and each is told apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from running import (
    AS_TEXT,
    ENGINE,
    OFTEN,
    PROSE,
    TEXT,
    TOKENS,
    TRAINER,
    assert_same,
    contents,
    kill_after_step,
    left,
    metrics,
    newest,
    one_line,
    resume,
    write_corpus,
)

from fractus_core.cli.main import main

if TYPE_CHECKING:
    from conftest import Site

STEPS = ("--steps", "14", "--checkpoint-every", "5")


@pytest.fixture(autouse=True)
def prose(site: Site) -> None:
    site.plugin("acme", PROSE.format(target=AS_TEXT))


@pytest.fixture
def args(tmp_path: Path, corpus: Path) -> list[str]:
    """But for `--out`."""
    other = write_corpus(tmp_path / "other.jsonl", documents=6, length=200, seed=5)
    return [
        *("run", "--frontend", "text", "--frontend", "prose"),
        *("--data", f"text={corpus}", "--data", f"prose={other}"),
        *(*TEXT, *ENGINE, *TRAINER, *OFTEN, *STEPS),
    ]


def train(args: list[str], out: Path, *options: str) -> Path:
    assert main([*args, "--out", str(out), *options]) == 0
    return out


def test_each_has_its_turn(tmp_path: Path, args: list[str]) -> None:
    out = train(args, tmp_path / "run", "--log-every", "1")
    lines = [line for line in metrics(out) if line["kind"] == "train"]
    assert [line["lane"] for line in lines] == ["text", "prose"] * 7
    assert [line["tokens"] for line in lines] == [step * TOKENS for step in range(1, 15)]
    info = left(out).values["info"]
    assert info["spent"] == {"tokens": 14 * TOKENS, "steps": 14}
    assert info["cursors"] == {"text": {"epoch": 0, "chunk": 7}, "prose": {"epoch": 0, "chunk": 7}}


@pytest.mark.parametrize("every", [2, pytest.param(5, marks=pytest.mark.slow)])
def test_each_has_its_own_figures(tmp_path: Path, args: list[str], every: int) -> None:
    """However seldom lines are written, no lane is left out, and no lane's loss is in another's."""
    each = train(args, tmp_path / "each", "--log-every", "1")
    losses: dict[str, dict[int, float]] = {"text": {}, "prose": {}}
    for line in metrics(each):
        if line["kind"] == "train":
            losses[line["lane"]][line["step"]] = line["loss"]
    assert len(losses["text"]) == len(losses["prose"]) == 7

    out = train(args, tmp_path / "run", "--log-every", str(every))
    told = {"text": 0, "prose": 0}
    for line in metrics(out):
        if line["kind"] == "train":
            lane, step = line["lane"], line["step"]
            since = [loss for at, loss in losses[lane].items() if told[lane] < at <= step]
            assert line["loss"] == pytest.approx(sum(since) / len(since))
            average: float | None = None
            for at, loss in losses[lane].items():
                if at <= step:
                    average = loss if average is None else 0.98 * average + 0.02 * loss
            assert line["loss_ema"] == pytest.approx(average)
            told[lane] = step
    assert min(told.values()) > 14 - 2 * every, "a lane's losses were not told"


def test_each_is_evaluated(tmp_path: Path, args: list[str]) -> None:
    out = train(args, tmp_path / "run")
    lines = [line for line in metrics(out) if line["kind"] == "eval"]
    assert [(line["step"], line["frontend"]) for line in lines] == [
        (8, "text"),
        (8, "prose"),
        (14, "text"),
        (14, "prose"),
    ]
    summary = json.loads((out / "summary.json").read_text())["frontends"]
    assert summary == {line["frontend"]: line["evaluation"] for line in lines[2:]}
    assert summary["text"]["loss_warm"] != summary["prose"]["loss_warm"]


def test_killed_and_resumed(tmp_path: Path, args: list[str]) -> None:
    whole = left(train(args, tmp_path / "whole"))
    assert {name.partition("/")[0] for name in whole.tensors} == {
        *("engine", "rng", "trainer"),
        *("frontend-text", "frontend-prose", "stream-text", "stream-prose"),
    }
    for step in (7, 12):  # in the turn of one, and of the other
        out = tmp_path / f"killed at {step}"
        kill_after_step(step, [*args, "--out", str(out)])
        assert main(resume(out)) == 0
        assert_same(left(out), whole)


def test_both_train_the_same_engine(tmp_path: Path, args: list[str]) -> None:
    """And each only its own front-end: after one step of the first, the second is as it was."""
    one = left(train(args, tmp_path / "one", "--steps", "1", "--cpu.reset_probability", "0"))
    two = left(train(args, tmp_path / "two", "--steps", "2", "--cpu.reset_probability", "0"))

    def same(name: str) -> bool:
        return torch.equal(one.tensors[name], two.tensors[name])

    assert same("frontend-text/weight")
    assert same("stream-text/position")
    assert not same("frontend-prose/weight")
    assert int(one.tensors["stream-prose/position"].sum()) == 0
    assert not all(same(name) for name in one.tensors if name.startswith("engine/"))


# --------------------------------------------------------------------------------- the command line


def test_data_is_given_by_name(
    tmp_path: Path, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, corpus = tmp_path / "run", args[args.index("--data") + 1].removeprefix("text=")
    cases: dict[tuple[str, ...], str] = {
        (corpus,): "--data text=",
        (f"text={corpus}",): "'prose'",
        (f"text={corpus}", f"text={corpus}", f"prose={corpus}"): "twice",
    }
    without = [arg for arg in args if "jsonl" not in arg and arg != "--data"]
    for data, said in cases.items():
        given = [arg for value in data for arg in ("--data", value)]
        assert main([*without, *given, "--out", str(out)]) == 2
        assert said in one_line(capsys.readouterr().err)
        assert not out.exists()


def test_an_evaluation_of_one(
    tmp_path: Path, args: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = train(args, tmp_path / "run", "--steps", "2")
    summary = json.loads((out / "summary.json").read_text())["frontends"]
    before = contents(out)

    def evaluate(*options: str) -> Any:
        capsys.readouterr()
        assert main(["eval", str(out), "--json", *options]) == 0
        return json.loads(capsys.readouterr().out)

    assert evaluate() == summary
    assert evaluate("--frontend", "prose") == {"prose": summary["prose"]}
    other = str(write_corpus(tmp_path / "another.jsonl", seed=9))
    assert main(["eval", str(out), "--data", other]) == 2
    assert "--frontend, of text, prose" in one_line(capsys.readouterr().err)
    assert list(evaluate("--frontend", "prose", "--data", other)) == ["prose"]
    assert main(["eval", str(out), "--frontend", "prosa"]) == 1
    assert one_line(capsys.readouterr().err).endswith("it has text, prose")
    assert contents(out) == before


def test_checkpoints_of_one_lane_are_not_taken_for_another(tmp_path: Path, args: list[str]) -> None:
    out = train(args, tmp_path / "run", "--steps", "2")
    found = {path.stem for path in (out / "checkpoints" / newest(out)).glob("*.safetensors")}
    assert found == {
        *("engine", "rng", "trainer"),
        *("frontend-text", "frontend-prose", "stream-text", "stream-prose"),
    }
