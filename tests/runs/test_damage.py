"""Damage to a run is named in one line, and what is refused changes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from damage import empty, flip, garbage, missing, truncate
from running import (
    AS_TEXT,
    ENGINE,
    PROSE,
    TOKENS,
    TRAINER,
    assert_same,
    contents,
    left,
    one_line,
    resume,
    start,
    write_corpus,
)

from fractus_core.cli.main import main

if TYPE_CHECKING:
    from conftest import Site

OLDER, NEWER = str(4 * TOKENS), str(6 * TOKENS)
NO_DECAY = ("--cpu.decay_from", "0", "--cpu.final_lr", "1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run `run`, with checkpoints at steps 4 and 6."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRACTUS_CACHE", str(folder / "cache"))
        corpus = write_corpus(folder / "corpus.jsonl")
        args = start(corpus, folder / "run", "--steps", "6", "--checkpoint-every", "2", *NO_DECAY)
        assert main(args) == 0
    return folder


@pytest.fixture
def out(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made / "run", tmp_path / "run")
    assert {p.name for p in (tmp_path / "run" / "checkpoints").iterdir()} == {
        OLDER,
        NEWER,
        "latest",
    }
    return tmp_path / "run"


@pytest.fixture
def longer(made: Path) -> Path:
    """The same run to step 9, unharmed."""
    whole = made / "longer"
    if not whole.exists():
        shutil.copytree(made / "run", whole)
        assert main(resume(whole, "--steps", "9")) == 0
    return whole


FILES = [
    "engine.safetensors",
    "frontend-text.safetensors",
    "trainer.safetensors",
    "stream-text.safetensors",
    "rng.safetensors",
    "checkpoint.json",
]
CASES = [
    *((file, damage) for file in FILES for damage in (truncate, missing)),
    ("engine.safetensors", flip),
    ("trainer.safetensors", flip),
    ("checkpoint.json", empty),
    ("checkpoint.json", garbage),
]


@pytest.mark.parametrize(("file", "damage"), CASES)
def test_a_damaged_checkpoint_is_named_and_the_previous_one_offered(
    out: Path, capsys: pytest.CaptureFixture[str], file: str, damage: Callable[[Path], None]
) -> None:
    damage(out / "checkpoints" / NEWER / file)
    before = contents(out)
    commands: list[list[str]] = [
        resume(out, "--steps", "9"),
        resume(out),
        ["eval", str(out)],
        ["generate", str(out), "--max-new", "1"],
    ]
    for command in commands:
        assert main(command) == 1
        line = one_line(capsys.readouterr().err)
        assert str(out / "checkpoints" / NEWER / file) in line
        assert "--allow-previous" in line
        assert "--debug" not in line
        assert contents(out) == before


@pytest.mark.parametrize(("file", "damage"), [CASES[0], CASES[-1], CASES[3]])
def test_the_previous_checkpoint_is_used_when_allowed(
    out: Path,
    longer: Path,
    capsys: pytest.CaptureFixture[str],
    file: str,
    damage: Callable[[Path], None],
) -> None:
    damage(out / "checkpoints" / NEWER / file)
    before = contents(out)
    assert main(["generate", str(out), "--max-new", "1", "--allow-previous"]) == 0
    err = capsys.readouterr().err
    assert f"{NEWER}/{file}" in err
    assert "passed over" in err
    assert contents(out) == before  # reading repairs nothing

    assert main(resume(out, "--steps", "9", "--allow-previous")) == 0
    err = capsys.readouterr().err
    assert f"{NEWER}/{file}" in err
    assert "passed over" in err
    assert "resumed at step 4" in err
    assert_same(left(out), left(longer))


def test_when_no_checkpoint_is_good(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in (OLDER, NEWER):
        truncate(out / "checkpoints" / name / "engine.safetensors")
    before = contents(out)
    assert main(resume(out, "--steps", "9", "--allow-previous")) == 1
    err = capsys.readouterr().err
    assert err.count("passed over") == 2
    assert one_line(err) == f"fractus: error: {out / 'checkpoints'}: no checkpoint can be read"
    assert contents(out) == before


def test_a_damaged_pointer_is_named(
    out: Path, longer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pointer = out / "checkpoints" / "latest"
    for content in (b"", b"\n", b"garbage\n", b"../..\n", b"\xff\xfe\n", b"-3\n", b"99\n"):
        pointer.write_bytes(content)
        before = contents(out)
        for command in (resume(out, "--steps", "9"), ["eval", str(out)]):
            assert main(command) == 1
            line = one_line(capsys.readouterr().err)
            assert f"{pointer} is damaged: it names" in line
            assert "--allow-previous" in line
            assert contents(out) == before
    assert main(resume(out, "--steps", "9", "--allow-previous")) == 0
    assert_same(left(out), left(longer))


def test_a_missing_pointer_loses_no_checkpoint(
    out: Path, longer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that has checkpoints must never begin from the start and drop them."""
    (out / "checkpoints" / "latest").unlink()
    assert main(resume(out, "--steps", "9")) == 0
    assert "resumed at step 6" in capsys.readouterr().err
    assert_same(left(out), left(longer))


def damage_run_json(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        value = json.loads(path.read_text())
        change(value)
        path.write_text(json.dumps(value))

    return damage


def written(text: str) -> Callable[[Path], None]:
    return lambda path: path.write_text(text) and None


RUN_JSON: dict[str, Callable[[Path], None]] = {
    "truncated": truncate,
    "empty": empty,
    "garbage": garbage,
    "list": written("[]"),
    "null": written("null"),
    "no keys": written("{}"),
} | {
    name: damage_run_json(change)
    for name, change in {
        "other format": lambda value: value.update(format=99),
        "key missing": lambda value: value.pop("seed"),
        "key too many": lambda value: value.update(extra=1),
        "front-ends of wrong type": lambda value: value.update(frontends={}),
        "front-ends null": lambda value: value.update(frontends=None),
        "engine field of wrong type": lambda value: value["engine"].update(d_model="x"),
        "engine field missing": lambda value: value["engine"].pop("d_model"),
        "engine field invalid": lambda value: value["engine"].update(d_model=7),
        "engine of other size": lambda value: value["engine"].update(d_model=48),
        "engine of other equations": lambda value: value["engine"].update(gate_kappa=5.0),
        "budget of wrong type": lambda value: value["budget"].update(steps="many"),
        "trainer options missing": lambda value: value["trainer"].pop("options"),
        "trainer options null": lambda value: value["trainer"].update(options=None),
        "trainer option missing": lambda value: value["trainer"]["options"].pop("lr"),
        "trainer option invalid": lambda value: value["trainer"]["options"].update(optimizer="x"),
        "schema missing": lambda value: value["frontends"][0].update(schema={}),
        "front-end options missing": lambda value: value["frontends"][0].update(options={}),
        "cadence invalid": lambda value: value.update(checkpoint_every="soon"),
        "log_every zero": lambda value: value.update(log_every=0),
        "log_every of wrong type": lambda value: value.update(log_every="x"),
        "eval_every zero": lambda value: value.update(eval_every=0),
        "eval_every null": lambda value: value.update(eval_every=None),
        "eval_tokens of wrong type": lambda value: value.update(eval_tokens="x"),
        "cadence of wrong type": lambda value: value.update(checkpoint_every=5),
        "seed of wrong type": lambda value: value.update(seed="x"),
        "seed of another run": lambda value: value.update(seed=1),
    }.items()
}


@pytest.mark.parametrize("damage", RUN_JSON.values(), ids=list(RUN_JSON))
def test_a_damaged_run_json_is_named(
    out: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    damage(out / "run.json")
    before = contents(out)
    assert main(resume(out, "--steps", "9")) == 1
    line = one_line(capsys.readouterr().err)
    assert str(out / "run.json") in line
    assert "--debug" not in line
    assert contents(out) == before


def test_a_plugin_that_is_gone_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus: Path, site: Site
) -> None:
    site.plugin("acme", PROSE.format(target=AS_TEXT))
    out = tmp_path / "run"
    args = ["run", "--frontend", "prose", "--data", str(corpus), "--out", str(out)]
    assert main([*args, *ENGINE, *TRAINER, "--steps", "1"]) == 0
    shutil.rmtree(site.folder / "acme-1.0.dist-info")
    before = contents(out)
    for command in (resume(out, "--steps", "9"), ["eval", str(out)], ["generate", str(out)]):
        capsys.readouterr()
        assert main(command) == 1
        line = one_line(capsys.readouterr().err)
        assert line.startswith("fractus: error: there is no front-end 'prose'; ")
        assert "text" in line
        assert contents(out) == before


def test_missing_metrics_do_not_keep_a_run_from_going_on(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "metrics.jsonl").unlink()
    assert main(resume(out, "--steps", "9")) == 0
    assert "metrics.jsonl has 0 bytes" in capsys.readouterr().err
    assert left(out).steps == 9


def test_metrics_are_cut_back_to_the_checkpoint(out: Path, longer: Path) -> None:
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 7, "wall": {}}\n{"kind": "tra')
    assert main(resume(out, "--steps", "9")) == 0
    assert_same(left(out), left(longer))
