"""How often each front-end of a run has its turn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from running import (
    AS_TEXT,
    ENGINE,
    OFTEN,
    PROSE,
    TEXT,
    TRAINER,
    assert_same,
    kill_after_step,
    left,
    metrics,
    one_line,
    resume,
    write_corpus,
)

from fractus_core.cli.main import main

if TYPE_CHECKING:
    from conftest import Site


@pytest.fixture
def args(tmp_path: Path, corpus: Path, site: Site) -> list[str]:
    site.plugin("acme", PROSE.format(target=AS_TEXT))
    other = write_corpus(tmp_path / "other.jsonl", documents=6, length=200, seed=5)
    return [
        *("run", "--frontend", "text", "--frontend", "prose"),
        *("--data", f"text={corpus}", "--data", f"prose={other}", "--out", str(tmp_path / "run")),
        *(*TEXT, *ENGINE, *TRAINER, *OFTEN, "--log-every", "1", "--eval-every", "100"),
    ]


def turns(out: Path) -> list[str]:
    return [line["lane"] for line in metrics(out) if line["kind"] == "train"]


@pytest.mark.parametrize(
    ("mix", "round_"),
    [
        ("text=3,prose=1", ["text", "text", "prose", "text"]),
        ("prose=3", ["prose", "text", "prose", "prose"]),
        ("prose=2, text=2", ["text", "prose", "text", "prose"]),
        ("", ["text", "prose"]),
    ],
)
def test_turns(tmp_path: Path, args: list[str], mix: str, round_: list[str]) -> None:
    assert main([*args, "--steps", str(2 * len(round_)), "--mix", mix]) == 0
    assert turns(tmp_path / "run") == 2 * round_


def test_turns_are_as_even_as_can_be(tmp_path: Path, args: list[str]) -> None:
    assert main([*args, "--steps", "14", "--mix", "text=5,prose=2"]) == 0
    found = turns(tmp_path / "run")
    assert found[:7] == found[7:]
    for step in range(1, 15):
        assert abs(found[:step].count("text") - step * 5 / 7) < 1
    assert found.count("text") == 10


def test_a_resumed_run_keeps_its_turns(tmp_path: Path, args: list[str]) -> None:
    out = tmp_path / "run"
    options = ("--steps", "9", "--mix", "text=3,prose=1", "--checkpoint-every", "3")
    assert main([*args, *options]) == 0
    whole = left(out)
    out.rename(tmp_path / "whole")
    for step in (5, 8):
        kill_after_step(step, resume(out) if out.exists() else [*args, *options])
    assert main(resume(out)) == 0
    assert_same(left(out), whole)


@pytest.mark.parametrize(
    ("mix", "part"),
    [
        ("text=0", "text=0"),
        ("text=-1", "text=-1"),
        ("text=1.5,prose=1", "text=1.5"),
        ("text=x", "text=x"),
        ("text", "text"),
        ("=2", "=2"),
        ("prosa=1", "prosa=1"),
        ("text=1,text=2", "text=2"),
        ("text=2,", ""),
    ],
)
def test_bad_values(
    tmp_path: Path, args: list[str], capsys: pytest.CaptureFixture[str], mix: str, part: str
) -> None:
    assert main([*args, f"--mix={mix}"]) == 2
    line = one_line(capsys.readouterr().err)
    assert "--mix" in line
    assert f"{part!r}: each of text, prose once at most" in line
    assert not (tmp_path / "run").exists()
