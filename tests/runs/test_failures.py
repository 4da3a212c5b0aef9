"""What goes wrong while a run trains ends it in one line, with the newest checkpoint intact."""

from __future__ import annotations

import errno
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from running import (
    ENGINE,
    PROSE,
    STEPS,
    TOKENS,
    TRAINER,
    Left,
    assert_same,
    left,
    newest,
    one_line,
    resume,
    start,
)

from fractus_core.cli.main import main
from fractus_core.runs import checkpoint, trees
from fractus_core.runs.run import Run

if TYPE_CHECKING:
    from conftest import Site

NO_DECAY = ("--cpu.decay_from", "0", "--cpu.final_lr", "1")
OPTIONS = (*STEPS, "--checkpoint-every", "3")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "RETRY_AFTER", (0.0, 0.0))


# ----------------------------------------------------------------------------------- a full disk


def fail_saves(monkeypatch: pytest.MonkeyPatch, first: int, last: int) -> None:
    """Writing of these tensor files, counted from 1, fails as on a full disk."""
    save_file, calls = trees.save_file, 0

    def failing(tensors: Any, path: Path, **rest: Any) -> None:
        nonlocal calls
        calls += 1
        if first <= calls <= last:
            Path(path).write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save_file(tensors, path, **rest)

    monkeypatch.setattr(trees, "save_file", failing)


FILES = 5
"""Of tensors, in a checkpoint."""


@pytest.mark.parametrize("call", [FILES + 1, pytest.param(2 * FILES, marks=pytest.mark.slow)])
def test_a_full_disk_ends_the_run_in_one_line(
    tmp_path: Path,
    corpus: Path,
    whole: Left,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    call: int,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_saves(patch, call, 1000)
        assert main(start(corpus, out, *OPTIONS)) == 1
    line = one_line(capsys.readouterr().err)
    assert "No space left on device" in line
    assert f"checkpoints/{6 * TOKENS}" in line
    assert line.endswith(
        f"; the checkpoint of step 3 is good; go on with fractus run --resume {out}"
    )
    assert left(out).steps == 3
    assert {p.name for p in (out / "checkpoints").iterdir()} == {str(3 * TOKENS), "latest"}

    assert main(resume(out)) == 0
    assert_same(left(out), whole)


def test_a_disk_full_from_the_start(
    tmp_path: Path,
    corpus: Path,
    whole: Left,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_saves(patch, 1, 1000)
        assert main(start(corpus, out, *OPTIONS)) == 1
    assert one_line(capsys.readouterr().err).endswith(
        f"; there is no checkpoint yet; begin again with fractus run --resume {out}"
    )
    assert main(resume(out)) == 0
    assert_same(left(out), whole)


@pytest.mark.parametrize("last", [FILES + 2, pytest.param(FILES + 1, marks=pytest.mark.slow)])
def test_a_passing_fault_does_not_end_the_run(
    tmp_path: Path, corpus: Path, whole: Left, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        fail_saves(patch, FILES + 1, last)
        assert main(start(corpus, out, *OPTIONS)) == 0
    assert_same(left(out), whole)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1.8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1800k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_really_full_disk(
    tmp_path: Path, corpus: Path, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two checkpoints and the one being written do not fit."""
    out = small_disk / "run"
    assert main(start(corpus, out, *OPTIONS)) == 1
    line = one_line(capsys.readouterr().err)
    assert "No space left on device" in line
    assert f"fractus run --resume {out}" in line
    good = newest(out)
    saved = left(out).steps
    assert int(good) == saved * TOKENS
    assert main(resume(out)) == 1  # nothing has been freed
    assert newest(out) == good
    for name in (out / "checkpoints").iterdir():
        if name.name.isdigit() and name.name != good:
            for file in name.iterdir():
                file.unlink()
            name.rmdir()


def test_a_metrics_file_that_cannot_be_written_is_said(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """/dev/full takes nothing."""
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "4", "--checkpoint-every", "3", *NO_DECAY)) == 0
    (out / "metrics.jsonl").unlink()
    (out / "metrics.jsonl").symlink_to("/dev/full")
    capsys.readouterr()
    assert main(resume(out, "--steps", "9")) == 1
    line = one_line(capsys.readouterr().err)
    assert "metrics.jsonl" in line
    assert "No space left on device" in line
    assert f"fractus run --resume {out}" in line
    assert "--debug" not in line


# ------------------------------------------------------------------------------ not finite


def test_a_loss_that_is_not_finite_stops_before_the_step(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    args = (*OPTIONS, "--checkpoint-every", "1", "--cpu.lr", "1e6", "--cpu.warmup_steps", "0")
    assert main(start(corpus, out, *args)) == 1
    line = one_line(capsys.readouterr().err)
    step = left(out).steps + 1
    assert f"step {step}: the " in line
    assert "nan" in line or "inf" in line
    assert "--cpu.lr" in line
    assert line.endswith(
        f"; the checkpoint of step {step - 1} is good; go on with fractus run --resume {out}"
    )
    assert "--debug" not in line
    for name, tensor in left(out).tensors.items():
        assert not tensor.is_floating_point() or tensor.isfinite().all(), name


SICK = """
    import torch
    from fractus_text.frontend import TextFrontend

    class Sick(TextFrontend):
        at, calls = 5, 0

        def score(self, hidden, targets, *, last=False):
            score = super().score(hidden, targets, last=last)
            if self.training:
                Sick.calls += 1
                if Sick.calls == Sick.at:
                    {how}
            return score
    """


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("score.loss.data.fill_(float('nan'))", "step 5: the loss is nan"),
        ("score.loss.data.fill_(float('inf'))", "step 5: the loss is inf"),
        (
            "score.loss.register_hook(lambda g: g * float('nan'))",
            "step 5: the gradient norm is nan",
        ),
    ],
)
def test_a_front_end_gone_wrong(
    tmp_path: Path,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    site: Site,
    how: str,
    message: str,
) -> None:
    site.plugin("acme", PROSE.format(target="sick:Sick"))
    (site.folder / "sick.py").write_text(dedent(SICK.format(how=how)))
    out = tmp_path / "run"
    options = (*ENGINE, *TRAINER, "--steps", "6", "--checkpoint-every", "3")
    args = ["run", "--frontend", "prose", "--data", str(corpus), "--out", str(out), *options]
    assert main(args) == 1
    line = one_line(capsys.readouterr().err)
    assert message in line
    assert line.endswith(
        f"; the checkpoint of step 3 is good; go on with fractus run --resume {out}"
    )
    assert left(out).steps == 3
    # The fault has passed.
    assert main(resume(out)) == 0
    assert left(out).steps == 6


def test_a_plugin_that_raises_in_a_hook_does_not_end_the_run(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], site: Site
) -> None:
    site.plugin(
        "acme",
        """
        @hookimpl
        def fractus_step(directory, number, step):
            raise RuntimeError("my dashboard is down")
        """,
    )
    assert main(start(corpus, tmp_path / "run", "--steps", "3")) == 0
    assert capsys.readouterr().err.count("my dashboard is down") == 1


def test_hooks_are_told_of_start_steps_and_end(
    tmp_path: Path, corpus: Path, capsys: pytest.CaptureFixture[str], site: Site
) -> None:
    site.plugin(
        "acme",
        """
        import json

        def say(directory, *what):
            with (directory / "told").open("a") as file:
                file.write(json.dumps(what) + "\\n")

        @hookimpl
        def fractus_run_start(directory, config):
            say(directory, "start", config["seed"], (directory / "run.json").exists())

        @hookimpl
        def fractus_step(directory, number, step):
            say(directory, number, step.lane, step.tokens)

        @hookimpl
        def fractus_run_end(directory, summary):
            say(directory, "end", summary["steps"], (directory / "summary.json").exists())
        """,
    )
    out = tmp_path / "run"
    assert main(start(corpus, out, "--steps", "2", "--seed", "7")) == 0
    assert main(resume(out, "--steps", "3")) == 0
    told = [json.loads(line) for line in (out / "told").read_text().splitlines()]
    assert told == [
        ["start", 7, True],
        [1, "text", TOKENS],
        [2, "text", TOKENS],
        ["end", 2, True],
        ["start", 7, True],
        [3, "text", TOKENS],
        ["end", 3, True],
    ]


def test_an_error_that_nobody_foresaw_keeps_the_last_checkpoint(
    tmp_path: Path,
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"

    def broken(*_: Any, **__: Any) -> None:
        raise MemoryError("cannot allocate 1 TB")

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_evaluate", broken)
        assert main(start(corpus, out, "--steps", "6", "--checkpoint-every", "3")) == 1
    assert "MemoryError" in one_line(capsys.readouterr().err)
    assert left(out).steps == 6
    assert main(resume(out)) == 0
