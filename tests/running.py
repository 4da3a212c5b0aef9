"""Tiny runs, in this process or in one that can be killed, and what is left of them."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "cats",
    "sleep",
]

ENGINE = ("--set", "d_model=32", "--set", "n_layers=1", "--set", "thought_stride=24")
TRAINER = (
    *("--cpu.threads", "1", "--cpu.batch_size", "4", "--cpu.chunk_len", "16"),
    *("--cpu.optimizer", "adamw", "--cpu.lr", "0.004", "--cpu.warmup_steps", "3"),
)
TEXT = ("--text.tokenizer", "bytes", "--text.validation", "0.5")
OFTEN = ("--log-every", "2", "--eval-every", "8")
TINY = (*TEXT, *ENGINE, *TRAINER, *OFTEN)
"""A step takes some 10 ms; an epoch of `write_corpus` takes 9 steps."""
TOKENS = 4 * 16
"""Of a step."""
STEPS = ("--steps", "20")
"""More than two epochs."""


def write_corpus(path: Path, *, documents: int = 8, length: int = 150, seed: int = 0) -> Path:
    """JSON lines, each a document of `length` letters and spaces."""
    draw = random.Random(seed)
    with path.open("w") as file:
        for _ in range(documents):
            text = " ".join(draw.choices(WORDS, k=length))[:length]
            file.write(json.dumps({"text": text}) + "\n")
    return path


PROSE = """
    @hookimpl
    def fractus_frontends():
        return [
            FrontendSpec(
                name="prose", summary="Text once more.", emits="tokens",
                target="{target}",
                options=(
                    Option(name="tokenizer", default="bytes", help="T."),
                    Option(name="column", default="text", help="C."),
                    Option(name="validation", default=0.5, help="V."),
                    Option(name="on_invalid", default="replace", help="I."),
                ),
            )
        ]
    """
"""A plugin with the front-end `prose`, for `Site.plugin`."""
AS_TEXT = "fractus_text.frontend:TextFrontend"


def start(data: Path, out: Path, *options: str) -> list[str]:
    """The arguments that start a tiny run."""
    return ["run", "--data", str(data), "--out", str(out), *TINY, *options]


def resume(out: Path, *options: str) -> list[str]:
    return ["run", "--resume", str(out), *options]


# ---------------------------------------------------------------------------- what a run leaves


@dataclass(frozen=True)
class Left:
    """What decides how a run goes on and what it reported, but for clock and place."""

    tensors: dict[str, Tensor]
    values: dict[str, Any]

    @property
    def steps(self) -> int:
        steps: int = self.values["info"]["spent"]["steps"]
        return steps


def left(directory: Path) -> Left:
    """Of the newest checkpoint, the metrics and the summary of a run; read without our code."""
    checkpoint = directory / "checkpoints" / newest(directory)
    tensors, structures = {}, {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            structures[path.name] = file.metadata()
            tensors |= {f"{path.stem}/{key}": file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    info = json.loads((checkpoint / "checkpoint.json").read_text())["info"]
    del info["spent"]["seconds"], info["metrics_size"]
    assert re.fullmatch("[0-9a-f]{64}", info.pop("config"))  # says where the data is, among else
    summary = directory / "summary.json"
    values = {"info": info, "structures": structures, "metrics": metrics(directory)}
    if summary.exists():
        values["summary"] = json.loads(summary.read_text())
        del values["summary"]["seconds"], values["summary"]["tokens_per_second"]
    return Left(tensors, values)


def newest(directory: Path) -> str:
    return (directory / "checkpoints" / "latest").read_text().strip()


def metrics(directory: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl` without what depends on the clock."""
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["wall"]
    return lines


def assert_same(found: Left, expected: Left) -> None:
    """Bit for bit."""
    assert found.values == expected.values
    assert found.tensors.keys() == expected.tensors.keys()
    for name, tensor in expected.tensors.items():
        assert found.tensors[name].dtype == tensor.dtype, name
        assert torch.equal(found.tensors[name], tensor), name


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file below `directory` and its bytes; locks left out, which say nothing."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if path.name != ".lock"
    }


# ---------------------------------------------------------------------- ends at a certain moment


class Killed(BaseException):
    """Ends a run in this process on the spot, as a SIGKILL does but for temporary files."""


@contextmanager
def after_step(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Have `act` called when optimizer step `number` has been made and counted."""
    from fractus_core.runs.run import Run

    account = Run._account

    def count(run: Run, *args: Any) -> None:
        account(run, *args)
        if run.spent.steps == number:
            act()

    Run._account = count  # type: ignore[method-assign]
    try:
        yield
    finally:
        Run._account = account  # type: ignore[method-assign]


def kill_after_step(number: int, args: list[str]) -> None:
    """Run `fractus` with `args` in this process until that step."""
    from fractus_core.cli.main import main

    def kill() -> None:
        raise Killed

    with after_step(number, kill):
        try:
            code = main(args)
        except Killed:
            return
    raise AssertionError(f"it ended before step {number} with {code}")


# ------------------------------------------------------------------- processes that can be killed

# A fork of a process that has imported all this starts in no time.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        "fractus_core.cli.run",
        "fractus_core.cli.training",
        "fractus_text.frontend",
        "fractus_trainers.cpu",
        "pytest",
        "torch._dynamo",  # which torch's optimizers import when the first is made
    ]
)


def before_calls(act: Callable[[], None], calls: list[tuple[Any, str]]) -> None:
    """Have `act` called before each of these functions, each an owner and a name, is."""

    def watch(owner: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            act()
            return original(*args, **kwargs)

        setattr(owner, name, watched)

    for owner, name in calls:
        watch(owner, name)


def quicken() -> None:
    """Shorter samples at evaluations: they take most of the time of a tiny run."""
    from fractus_text import frontend

    frontend.SAMPLE_TOKENS = 12


class Command:
    """`fractus` with `args`, in another process."""

    def __init__(
        self, args: list[str], folder: Path, *, before: Callable[[], None] | None = None
    ) -> None:
        """`before` is called in that process first; what it prints goes to files in `folder`."""
        folder.mkdir(exist_ok=True)
        number = len(list(folder.iterdir()))
        self.output = folder / f"{number}.out", folder / f"{number}.err"
        environment = {k: v for k, v in os.environ.items() if k.startswith("FRACTUS")}
        self._process = _context.Process(
            target=_main, args=(args, self.output, environment, before), daemon=True
        )
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def signal(self, number: int) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def wait(self, seconds: float = 300) -> tuple[int, str, str]:
        """Exit code (minus the signal that killed it), stdout and stderr."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            raise AssertionError(f"still running after {seconds} s: {self.output[1].read_text()}")
        out, err = (path.read_text() if path.exists() else "" for path in self.output)
        return code, out, err


def _main(
    args: list[str],
    output: tuple[Path, Path],
    environment: Mapping[str, str],
    before: Callable[[], None] | None,
) -> None:
    for number, path in enumerate(output, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), number)
    os.environ.update(environment)
    quicken()
    if before is not None:
        before()
    from fractus_core.cli.main import main

    raise SystemExit(main(args))


def killed_anywhere(args: list[str], folder: Path, beside: Path) -> Iterator[None]:
    """`folder` as `fractus` with `args` would leave it if it were killed, for each change of it.

    Of any two moments between which nothing changes on the disk, only one is of interest.
    """
    states = beside / "states"
    for empty in (folder, states):
        empty.mkdir()
    command = Command(args, beside / "log", before=partial(_keep_states, folder, states))
    code, _, err = command.wait()
    assert code == 0, err
    for number in range(len(list(states.iterdir()))):
        shutil.rmtree(folder)
        (states / str(number)).rename(folder)
        yield


def _keep_states(folder: Path, states: Path) -> None:
    """Before each access to the disk, copy what has changed."""
    from fractus_core.runs.metrics import MetricsLog

    number, last = 0, None

    def keep() -> None:
        nonlocal number, last
        now = contents(folder)
        if now != last:
            shutil.copytree(folder, states / str(number))
            number, last = number + 1, now

    names = ("mkdir", "rename", "replace", "unlink")
    accesses = [(os, "fsync"), (shutil, "rmtree"), *((Path, name) for name in names)]
    before_calls(keep, [*accesses, (MetricsLog, "write")])


def wait_until(true: Callable[[], object], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.001)


def lines_written(directory: Path) -> int:
    """Lines in `metrics.jsonl` now."""
    try:
        return (directory / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def one_line(err: str) -> str:
    """The error in what was written to stderr: the last line, and the only one of its kind."""
    assert "Traceback" not in err
    lines = err.strip().splitlines()
    if lines and lines[-1].startswith("Try 'fractus"):
        del lines[-1]
    assert [line for line in lines if line.startswith("fractus: error: ")] == lines[-1:], err
    return lines[-1]
