"""`fractus run`: what is wrong is said in one line before anything is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import namedtuple
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
import torch
from running import STEPS, TOKENS, contents, one_line, resume, start, write_corpus

from fractus_core.cli.main import main
from fractus_core.engine import PRESETS, EngineConfig
from fractus_text import corpus as corpus_module
from fractus_text.readers import Input, read_text

if TYPE_CHECKING:
    from conftest import Site

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, empty, with the cache outside of it."""
    monkeypatch.setenv("FRACTUS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return write_corpus(tmp_path / "corpus.jsonl")


def refused(capsys: pytest.CaptureFixture[str], code: int, args: list[str]) -> str:
    """The one line that `args` end with; nothing is written to the current folder or to stdout."""
    before = contents(Path.cwd())
    capsys.readouterr()
    assert main(args) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "--debug" not in told.err, "an error that nobody foresaw"
    line = one_line(told.err)
    assert contents(Path.cwd()) == before
    return line


# ----------------------------------------------------------------------------------------- misspelt


MISSPELT: list[tuple[list[str], list[str]]] = [
    (["--frontend", "txt"], ["--frontend", "no front-end 'txt'", "'text'?"]),
    (["--frontend", "zzz"], ["no front-end 'zzz'", "installed:", "text"]),
    (["--trainer", "cpuu"], ["--trainer", "no trainer 'cpuu'", "'cpu'?"]),
    (["--preset", "stage9"], ["--preset", "no 'stage9'", "'stage"]),
    (["--preset", "huge"], ["no 'huge'", "stage0, stage1"]),
    (["--step", "3"], ["--step", "--steps"]),
    (["--cpu.leer", "1"], ["--cpu.leer", "--cpu.lr"]),
    (["--text.tokeniser", "x"], ["--text.tokeniser", "--text.tokenizer"]),
    (["--set", "n_layer=2"], ["--set", "no 'n_layer'", "'n_layers'?"]),
    (["--set", "quantum=2"], ["no 'quantum'", "d_model"]),
    (["--set", "n_layers"], ["'n_layers' is not FIELD=VALUE"]),
    (["--cpu.optimizer", "adam"], ["--cpu.optimizer", "'adam'", "'adamw'"]),
    (["--cpu.head", "first"], ["--cpu.head", "'first'", "'last'"]),
    (["--text.on_invalid", "ignore"], ["--text.on_invalid", "'refuse'"]),
    (["extra"], ["extra"]),
]


@pytest.mark.parametrize(("options", "said"), MISSPELT, ids=lambda value: " ".join(value))
def test_what_does_not_exist(
    capsys: pytest.CaptureFixture[str], corpus: Path, options: list[str], said: list[str]
) -> None:
    args = ["run", "--data", str(corpus), *options]
    line = refused(capsys, 2, args)
    for part in said:
        assert part in line


BAD_VALUES: list[tuple[list[str], list[str]]] = [
    (["--set", "d_model=7"], ["d_model = 7", "multiple of"]),
    (["--set", "d_model=x"], ["--set", "'x'", "integer"]),
    (["--set", "d_model=0"], ["d_model = 0", "at least 1"]),
    (["--set", "n_layers=-1"], ["n_layers = -1"]),
    (["--set", "top_k=9"], ["top_k = 9", "n_experts = 4"]),
    (["--set", "gate_kappa=nan"], ["gate_kappa = nan", "finite"]),
    (["--set", "gate_kappa=inf"], ["gate_kappa = inf", "finite"]),
    (["--set", "gate_kappa=0"], ["gate_kappa = 0.0", "positive"]),
    (["--set", "decay=silver"], ["decay = 'silver'", "golden, none"]),
    (["--set", "token_shift=perhaps"], ["--set", "'perhaps'", "boolean"]),
    (["--minutes", "nan"], ["--minutes", "nan"]),
    (["--minutes", "inf"], ["--minutes", "inf"]),
    (["--minutes", "0"], ["--minutes", "0"]),
    (["--minutes", "-1"], ["--minutes", "-1"]),
    (["--steps", "0"], ["--steps", "0"]),
    (["--steps", "1.5"], ["--steps", "1.5"]),
    (["--tokens", "-5"], ["--tokens", "-5"]),
    (["--seed", "-1"], ["--seed", "-1"]),
    (["--seed", str(2**63)], ["--seed", str(2**63)]),
    (["--log-every", "0"], ["--log-every"]),
    (["--eval-every", "0"], ["--eval-every"]),
    (["--eval-tokens", "0"], ["--eval-tokens"]),
    (["--checkpoint-every", "soon"], ["--checkpoint-every", "'soon'", "90s"]),
    (["--cpu.threads", "100000"], ["--cpu.threads", "100000"]),
    (["--cpu.threads", "-1"], ["--cpu.threads", "-1"]),
    (["--cpu.lr", "-1"], ["--cpu.lr", "-1"]),
    (["--cpu.lr", "nan"], ["--cpu.lr", "nan"]),
    (["--cpu.lr", "inf"], ["--cpu.lr", "inf"]),
    (["--cpu.batch_size", "0"], ["--cpu.batch_size"]),
    (["--cpu.chunk_len", "0"], ["--cpu.chunk_len"]),
    (["--cpu.reset_probability", "1.5"], ["--cpu.reset_probability", "1.5"]),
    (["--text.validation", "1"], ["--text.validation"]),
    (["--text.validation", "nan"], ["--text.validation", "nan"]),
    (["--allow-previous"], ["--allow-previous", "--resume"]),
]


@pytest.mark.parametrize(("options", "said"), BAD_VALUES, ids=lambda value: " ".join(value))
def test_what_is_no_value(
    capsys: pytest.CaptureFixture[str], corpus: Path, options: list[str], said: list[str]
) -> None:
    line = refused(capsys, 2, ["run", "--data", str(corpus), *options])
    for part in said:
        assert part in line


# --------------------------------------------------------------------------------------------- data


WORDS = b"some words and some more words, again and again\n" * 40
DATA: dict[str, tuple[str, bytes | None, list[str], list[str]]] = {
    "missing": ("gone.txt", None, [], ["no such data", "gone.txt"]),
    "empty": ("empty.txt", b"", [], ["empty.txt", "empty"]),
    "blank rows": ("blank.jsonl", b'{"text": ""}\n' * 5, [], ["blank.jsonl", "no text"]),
    "binary": ("image.txt", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" * 100, [], ["image.txt"]),
    "too short": ("short.txt", b"only so much", [], ["tokens", "give more text"]),
    "short for a batch": (
        "short.txt",
        WORDS,
        ["--cpu.batch_size", "64"],
        ["split has", "needs 1025", "smaller batch"],
    ),
    "held back too short": (
        "short.txt",
        WORDS,
        ["--text.validation", "0.01"],
        ["validation split has", "give more text"],
    ),
    "not UTF-8": (
        "latin.txt",
        WORDS + "Zürich".encode("latin-1"),
        ["--text.on_invalid", "refuse"],
        ["latin.txt", f"byte {len(WORDS) + 1}", "UTF-8"],
    ),
    "no JSON": ("rows.jsonl", b"{nonsense}\n", [], ["rows.jsonl", "line 1"]),
    "other column": ("rows.jsonl", b'{"body": "x"}\n', [], ["rows.jsonl", "'text'", "body"]),
    "other kind": ("data.docx", b"x" * 100, [], ["data.docx", ".txt"]),
    "no tokenizer": ("w.txt", WORDS, ["--text.tokenizer", "gone.json"], ["no file 'gone.json'"]),
    "tokenizer misspelt": ("w.txt", WORDS, ["--text.tokenizer", "byte"], ["'byte'", "mean bytes"]),
}


@pytest.mark.parametrize("case", DATA.values(), ids=list(DATA))
def test_data_that_cannot_be_used(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    case: tuple[str, bytes | None, list[str], list[str]],
) -> None:
    name, content, options, said = case
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    for extra in ([], ["--dry-run"]):
        line = refused(capsys, 1, start(path, Path("out"), *options, *extra))
        for part in said:
            assert part in line


def test_data_that_may_not_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], corpus: Path
) -> None:
    corpus.chmod(0)
    if os.access(corpus, os.R_OK):
        pytest.skip("everything may be read here")
    line = refused(capsys, 1, start(corpus, Path("out")))
    assert f"cannot read {corpus}" in line


# ------------------------------------------------------------------------------ where it is written


def test_a_directory_that_exists(
    elsewhere: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "folder").mkdir()
    (elsewhere / "folder" / "precious").write_text("x")
    (elsewhere / "file").write_text("x")
    (elsewhere / "link").symlink_to("nowhere")
    for name in ("folder", "file", "link"):
        line = refused(capsys, 1, start(corpus, Path(name)))
        assert line == (
            f"fractus: error: {name} exists: choose another --out, or go on with it by --resume"
        )


def test_a_directory_that_cannot_be_made(
    elsewhere: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (elsewhere / "file").write_text("x")
    line = refused(capsys, 1, start(corpus, Path("file/run")))
    assert line == "fractus: error: cannot make file/run: Not a directory"
    folder = elsewhere / "closed"
    folder.mkdir(mode=0o500)
    if not os.access(folder, os.W_OK):
        line = refused(capsys, 1, start(corpus, folder / "run"))
        assert line == f"fractus: error: cannot make {folder / 'run'}: Permission denied"


# ----------------------------------------------------------------------------------------- resuming


def test_what_is_no_run_is_not_resumed(elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (elsewhere / "empty").mkdir()
    (elsewhere / "file").write_text("x")
    for name in ("gone", "empty", "file"):
        line = refused(capsys, 1, resume(Path(name)))
        assert line == f"fractus: error: {name} is no run: it has no run.json"
    line = refused(capsys, 2, resume(Path("empty"), "--seed", "3"))
    assert "--seed is fixed when a run starts" in line


# ----------------------------------------------------------------------------------------- dry runs


def test_a_dry_run_writes_nothing(
    elsewhere: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(start(corpus, Path("out"), *STEPS, "--dry-run")) == 0
    told = capsys.readouterr().out
    assert "nothing was written" in told
    assert f"{TOKENS} tokens a step" in told
    assert list(elsewhere.iterdir()) == []


def test_a_dry_run_as_json(
    elsewhere: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = start(corpus, Path("out"), "--tokens", "6400", "--minutes", "5", "--dry-run", "--json")
    assert main(args) == 0
    plan = json.loads(capsys.readouterr().out)
    assert list(elsewhere.iterdir()) == []
    assert plan.keys() == {
        *("directory", "parameters", "tokens_per_step", "tokens_per_second"),
        *("training_seconds", "memory_mb", "config"),
    }
    assert plan["directory"] == "out"
    assert plan["tokens_per_step"] == TOKENS
    # The token budget is the nearer one.
    assert plan["training_seconds"] == pytest.approx(6400 / plan["tokens_per_second"], abs=0.1)
    assert plan["memory_mb"] > 50
    assert plan["config"]["budget"] == {"tokens": 6400, "steps": None, "seconds": 300.0}
    # What it would begin with is what a run does begin with.
    assert main(start(corpus, Path("out"), "--steps", "1")) == 0
    config = json.loads(Path("out/run.json").read_text())
    for key in ("engine", "seed", "log_every", "eval_every", "eval_tokens", "checkpoint_every"):
        assert config[key] == plan["config"][key], key
    assert config["trainer"] == plan["config"]["trainer"]
    assert config["environment"] == plan["config"]["environment"]
    assert config["frontends"] == plan["config"]["frontends"]


def test_with_no_options_a_small_engine_reads_what_python_brings(
    tmp_path: Path,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "topics.txt"  # instead of 9 MB
    file.write_bytes(WORDS * 10)
    inputs = [Input((file,), "text", partial(read_text, file))]
    monkeypatch.setattr(corpus_module, "python_docs", lambda: inputs)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # two threads wait for each other here
    assert main(["run", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    config = plan["config"]
    [frontend] = config["frontends"]
    assert (frontend["name"], frontend["data"]) == ("text", "python-docs")
    assert frontend["options"]["tokenizer"] == "fractus-8k"
    assert config["trainer"]["name"] == "cpu"
    assert config["budget"] == {"tokens": None, "steps": None, "seconds": 180.0}
    assert config["engine"] == asdict(EngineConfig(**PRESETS["stage0"]))
    assert config["seed"] == 0
    assert plan["training_seconds"] == 180.0
    assert plan["directory"].startswith("runs/text-cpu-")
    assert list(elsewhere.iterdir()) == []


def test_what_does_not_fit_into_memory_is_said(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = namedtuple("memory", "available")(10**9)  # type: ignore[call-arg]
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    args = ["run", "--data", str(corpus), "--preset", "1b", "--text.validation", "0.5", "--dry-run"]
    line = refused(capsys, 1, args)
    assert "1.0 GB are free" in line
    assert "smaller --preset" in line


# ------------------------------------------------------------------------------------- what it says


def test_the_result_as_json(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(start(corpus, Path("out"), "--steps", "3", "--json")) == 0
    result = json.loads(capsys.readouterr().out)
    summary = json.loads(Path("out/summary.json").read_text())
    assert result == summary | {"directory": "out", "finished": True}
    assert result.keys() == {
        *("directory", "finished", "steps", "tokens", "seconds"),
        *("tokens_per_second", "frontends"),
    }
    assert (result["steps"], result["tokens"]) == (3, 3 * TOKENS)
    assert result["frontends"]["text"].keys() == {
        *("loss_warm", "loss_cold", "loss_uniform", "bits_per_byte", "tokens", "routing"),
    }


def test_the_result_in_words(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And every command that it offers works, also where the name has a space."""
    import shlex

    out = Path("my run")
    assert main(start(corpus, out, "--steps", "2")) == 0
    told = capsys.readouterr().out
    assert f"finished: 2 steps, {2 * TOKENS} tokens" in told
    commands = [shlex.split(line) for line in told.splitlines() if line.startswith("  fractus")]
    assert [command[1] for command in commands] == ["generate", "eval", "run"]
    for command in commands:
        assert main(command[1:]) == 0, command
    assert json.loads((out / "summary.json").read_text())["steps"] == 4


def test_a_directory_of_its_own_when_none_is_named(
    elsewhere: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = [
        arg for arg in start(corpus, Path("out"), "--steps", "1") if arg not in ("--out", "out")
    ]
    assert main(args) == 0
    [folder] = (elsewhere / "runs").iterdir()
    assert folder.name.startswith("text-cpu-20")
    assert f"fractus eval runs/{folder.name}" in capsys.readouterr().out


def test_budgets(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first to be reached ends the run; tokens are rounded up to a step."""
    cases: dict[tuple[str, ...], int] = {
        ("--tokens", str(2 * TOKENS)): 2,
        ("--tokens", str(2 * TOKENS + 1)): 3,
        ("--tokens", "1"): 1,
        ("--steps", "2", "--tokens", "1000000", "--minutes", "30"): 2,
        ("--minutes", "0.00001", "--steps", "10"): 1,
    }
    for number, (options, steps) in enumerate(cases.items()):
        capsys.readouterr()
        assert main(start(corpus, Path(str(number)), *options, "--json")) == 0
        assert json.loads(capsys.readouterr().out)["steps"] == steps


def test_settings_are_typed(corpus: Path) -> None:
    options = ("--set", "gate_kappa=3", "--set", "token_shift=no", "--set", "decay=none")
    assert main(start(corpus, Path("out"), "--steps", "1", *options)) == 0
    engine = json.loads(Path("out/run.json").read_text())["engine"]
    assert engine["gate_kappa"] == 3.0
    assert isinstance(engine["gate_kappa"], float)
    assert engine["token_shift"] is False
    assert engine["decay"] == "none"
    assert engine["d_model"] == 32


def test_what_a_plugin_of_another_kind_emits_is_refused(
    corpus: Path, capsys: pytest.CaptureFixture[str], site: Site
) -> None:
    site.plugin(
        "acme",
        """
        @hookimpl
        def fractus_trainers():
            return [TrainerSpec(name="seer", summary="S.", target="a:B", accepts=("images",))]
        """,
    )
    args = ["run", "--data", str(corpus), "--trainer", "seer", "--out", "out"]
    line = refused(capsys, 1, [*args, "--text.tokenizer", "bytes"])
    assert line == ("fractus: error: trainer 'seer' accepts images; front-end 'text' emits tokens")


def test_help_and_refusals_import_no_torch(corpus: Path) -> None:
    code = (
        "import sys; from fractus_core.cli.main import main; code = main(sys.argv[1:]);"
        "sys.exit(99 if 'torch' in sys.modules else code)"
    )
    cases: dict[tuple[str, ...], int] = {
        ("run", "--help"): 0,
        ("run", "--set", "d_model=7"): 2,
        ("run", "--cpu.lr", "x"): 2,
    }
    for args, expected in cases.items():
        done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True)
        assert done.returncode == expected, done.stderr
