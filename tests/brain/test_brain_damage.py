"""Damage to a brain is named in one line by whoever meets it, and nothing is changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from brains import kept
from damage import flip, garbage, missing, truncate
from running import contents, one_line, resume, start, write_corpus

from fractus_core.cli.main import main

OPTIONS = ("--steps", "4", "--sync-every", "2")
NEWEST = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `run` and its brain, after its joining and two exchanges."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        corpus = write_corpus(folder / "corpus.jsonl")
        args = start(corpus, folder / "run", *OPTIONS, "--brain", str(folder / "brain"))
        assert main(args) == 0
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path, brain: Path) -> Path:
    """A copy of the run, and of the brain."""
    shutil.copytree(made / "brain", brain)
    shutil.copytree(made / "run", tmp_path / "run")
    assert kept(brain).number == NEWEST
    return tmp_path / "run"


EXCHANGE = f"exchanges/{NEWEST}"
CASES = [
    *((f"{EXCHANGE}/engine.safetensors", d) for d in (truncate, flip, missing)),
    (f"{EXCHANGE}/frontend-text.safetensors", flip),
    *((f"{EXCHANGE}/checkpoint.json", d) for d in (flip, garbage, missing)),
    ("exchanges/latest", garbage),
]


@pytest.mark.parametrize(("file", "damage"), CASES)
def test_damage_is_named(
    made: Path,
    out: Path,
    brain: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    damage: Callable[[Path], None],
) -> None:
    damage(brain / file)
    before, run = contents(brain), contents(out)
    joining = start(made / "corpus.jsonl", tmp_path / "new", *OPTIONS, "--brain", str(brain))
    for command in (
        ["brain", "status", str(brain)],
        ["eval", str(brain)],
        ["generate", str(brain), "--max-new", "1"],
        joining,
        resume(out, "--steps", "8", "--brain", str(brain)),
    ):
        capsys.readouterr()
        assert main(command) == 1
        line = one_line(capsys.readouterr().err)
        assert str(brain / file) in line
        assert "--debug" not in line
        if command[0] in ("eval", "generate"):
            assert "--allow-previous" in line
        assert contents(brain) == before
        assert contents(out) == run
    assert not (tmp_path / "new").exists()
    assert main(["generate", str(brain), "--max-new", "1", "--allow-previous"]) == 0
    if file != "exchanges/latest":
        assert "passed over" in capsys.readouterr().err
    assert contents(brain) == before


def changed(**fields: Any) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))

    return change


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (garbage, "is damaged"),
        (truncate, "is damaged"),
        (changed(format=9), "has format 9; this version of Fractus reads 1"),
        (changed(rule="median"), "is damaged: its rule is 'median', not one of auto, mean, sum"),
        (changed(engine={"d_mood": 3}), "is damaged"),
        (changed(engine=3), "is damaged"),
    ],
)
def test_a_damaged_mark(
    made: Path,
    out: Path,
    brain: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
    said: str,
) -> None:
    damage(brain / "brain.json")
    before = contents(brain)
    joining = start(made / "corpus.jsonl", tmp_path / "new", *OPTIONS, "--brain", str(brain))
    for command in (
        ["brain", "status", str(brain)],
        ["eval", str(brain)],
        joining,
        resume(out, "--steps", "8", "--brain", str(brain)),
    ):
        capsys.readouterr()
        assert main(command) == 1
        line = one_line(capsys.readouterr().err)
        assert f"{brain / 'brain.json'} {said}" in line
        assert "--debug" not in line
        assert contents(brain) == before
    assert not (tmp_path / "new").exists()
