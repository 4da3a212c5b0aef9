"""`fractus brain status`, and `eval` and `generate` on a brain."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from brains import kept
from running import (
    AS_TEXT,
    PROSE,
    TOKENS,
    Command,
    contents,
    left,
    lines_written,
    metrics,
    one_line,
    start,
    wait_until,
    write_corpus,
)

from fractus_core.brain.directory import BrainDirectory
from fractus_core.cli.main import main
from fractus_core.engine import EngineConfig

if TYPE_CHECKING:
    from conftest import Site

OPTIONS = ("--steps", "6", "--sync-every", "4")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a brain and two runs that have grown it, of two halves of a corpus."""
    folder = tmp_path_factory.mktemp("made")
    corpus = write_corpus(folder / "corpus.jsonl", documents=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        for name, shard in (("one", "0/2"), ("two", "1/2")):
            options = (*OPTIONS, "--brain", str(folder / "brain"), "--shard", shard)
            assert main(start(corpus, folder / name, *options)) == 0
    return folder


def answer(capsys: pytest.CaptureFixture[str], *args: object) -> Any:
    capsys.readouterr()
    assert main([str(arg) for arg in args]) == 0
    return json.loads(capsys.readouterr().out)


def test_status_as_json(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brain = made / "brain"
    before = contents(brain)
    report = answer(capsys, "brain", "status", brain, "--json")
    assert contents(brain) == before
    lanes = report.pop("lanes")
    assert report == {
        "directory": str(brain),
        "id": json.loads((brain / "brain.json").read_text())["id"],
        "rule": "auto",
        "exchanges": 4,
        "frontends": {"text": "text"},
    }
    assert list(lanes) == ["text-0of2", "text-1of2"]
    for (name, lane), run in zip(lanes.items(), ("one", "two"), strict=True):
        assert time.time() - 600 < lane.pop("time") < time.time()
        assert lane.pop("run") == str(made / run)
        assert lane.pop("alive") is False
        assert lane == kept(brain).lanes[name]
        told = [line for line in metrics(made / run) if line["kind"] == "exchange"]
        assert [(line["step"], line["tokens"]) for line in told] == [
            (4, 4 * TOKENS),
            (6, 6 * TOKENS),
        ]
        assert (lane["drift"], lane["n"], lane["last_exchange"]) == (
            told[-1]["drift"],
            told[-1]["n"],
            told[-1]["exchange"],
        )
        assert (lane["steps"], lane["tokens"], lane["exchanges"]) == (6, 6 * TOKENS, 2)


def test_status_as_a_table(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["brain", "status", str(made / "brain")]) == 0
    first, head, *lanes = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{made / 'brain'}: 4 exchanges by 2 lanes, merged by auto")
    assert head.split() == [
        "lane",
        "front-ends",
        "now",
        "steps",
        "tokens",
        "exchanges",
        "last",
        "drift",
    ]
    assert [line.split()[:6] for line in lanes] == [
        ["text-0of2", "text", "stopped", "6", str(6 * TOKENS), "2"],
        ["text-1of2", "text", "stopped", "6", str(6 * TOKENS), "2"],
    ]


def test_status_of_a_lane_in_training(
    tmp_path: Path, corpus: Path, brain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    args = start(corpus, out, "--minutes", "10", "--brain", str(brain), "--sync-every", "3")
    command = Command(args, tmp_path / "log")
    wait_until(lambda: lines_written(out))
    for _ in range(3):  # to ask does not take its name away
        report = answer(capsys, "brain", "status", brain, "--json")
        assert report["lanes"]["text"]["alive"] is True
    assert main(["brain", "status", str(brain)]) == 0
    assert " training " in capsys.readouterr().out
    command.signal(signal.SIGKILL)
    command.wait()
    report = answer(capsys, "brain", "status", brain, "--json")
    assert report["lanes"]["text"]["alive"] is False


def test_evaluate(made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The last lane to come took the whole brain; on other data, too."""
    brain = made / "brain"
    before = contents(brain)
    found = answer(capsys, "eval", brain, "--json")
    assert found.keys() == {"text"}
    last = json.loads((made / "two" / "summary.json").read_text())["frontends"]["text"]
    assert found["text"]["tokens"] == last["tokens"]
    assert found["text"]["loss_warm"] == pytest.approx(last["loss_warm"], abs=1e-5)
    other = write_corpus(tmp_path / "other.jsonl", seed=3)
    data = answer(capsys, "eval", brain, "--data", other, "--json")
    assert data["text"]["loss_warm"] != found["text"]["loss_warm"]
    assert main(["eval", str(brain)]) == 0
    assert f"{found['text']['loss_warm']:.4f}" in capsys.readouterr().out
    assert contents(brain) == before


def test_generate(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brain = made / "brain"
    before = contents(brain)
    found = answer(capsys, "generate", brain, "--prompt", "the ", "--max-new", "9", "--json")
    assert found["prompt"] == "the "
    assert 0 < found["tokens"] <= 9
    assert contents(brain) == before


def test_of_two_front_ends(
    tmp_path: Path,
    corpus: Path,
    brain: Path,
    site: Site,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And of one with another tokenizer, which has a name of its own."""
    site.plugin("acme", PROSE.format(target=AS_TEXT))
    brained = ("--steps", "2", "--brain", str(brain))
    assert main(start(corpus, tmp_path / "bytes", *brained)) == 0
    chars = start(corpus, tmp_path / "chars", *brained, "--text.tokenizer", "chars")
    assert main(chars) == 0
    prose = start(corpus, tmp_path / "prose", *brained, "--frontend", "prose")
    assert main([arg.replace("--text.", "--prose.") for arg in prose]) == 0
    report = answer(capsys, "brain", "status", brain, "--json")
    assert report["frontends"] == {"text": "text", "text-2": "text", "prose": "prose"}
    assert {name: lane["frontends"] for name, lane in report["lanes"].items()} == {
        "text": ["text"],
        "text-2": ["text-2"],
        "prose": ["prose"],
    }
    found = answer(capsys, "eval", brain, "--json")
    assert list(found) == ["text", "text-2", "prose"]
    assert found["text"]["loss_uniform"] > found["text-2"]["loss_uniform"]
    assert answer(capsys, "eval", brain, "--frontend", "prose", "--json") == {
        "prose": found["prose"]
    }
    assert main(["eval", str(brain), "--frontend", "prosa"]) == 1
    assert one_line(capsys.readouterr().err).endswith("it has text, text-2, prose")
    assert main(["eval", str(brain), "--data", str(corpus)]) == 2
    assert "--frontend, of text, text-2, prose" in one_line(capsys.readouterr().err)


def test_a_run_is_not_its_brain(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it has learnt itself is what it is evaluated by."""
    found = answer(capsys, "eval", made / "one", "--json")
    assert found == left(made / "one").values["summary"]["frontends"]


def test_an_empty_brain(brain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As a process leaves it that is killed at once."""
    BrainDirectory(brain).open_or_create(EngineConfig(), None)
    for command in (["eval"], ["generate"], ["eval", "--allow-previous"]):
        assert main([*command, str(brain)]) == 1
        line = one_line(capsys.readouterr().err)
        assert line == f"fractus: error: the brain {brain} is empty: no run has joined it yet"
    report = answer(capsys, "brain", "status", brain, "--json")
    assert (report["exchanges"], report["lanes"], report["frontends"]) == (0, {}, {})
    assert main(["brain", "status", str(brain)]) == 0
    assert "0 exchanges by 0 lanes" in capsys.readouterr().out


@pytest.mark.parametrize("make", [None, "file", "folder"])
def test_no_brain(tmp_path: Path, make: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x"
    if make == "file":
        path.write_text("x")
    elif make == "folder":
        path.mkdir()
    assert main(["brain", "status", str(path)]) == 1
    line = one_line(capsys.readouterr().err)
    assert line == f"fractus: error: {path} is no brain: it has no brain.json"
    assert path.exists() == (make is not None)
    assert not path.is_dir() or not list(path.iterdir())
