"""A disk that is full or read-only, and a lock that is held: one line each, and all can go on."""

from __future__ import annotations

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from brains import assert_kept_same, kept
from filelock import FileLock
from running import (
    TOKENS,
    after_step,
    assert_same,
    contents,
    kill_after_step,
    left,
    one_line,
    resume,
    start,
)

from fractus_core.brain import directory as module
from fractus_core.cli.main import main
from fractus_core.runs import checkpoint, trees

OPTIONS = ("--steps", "9", "--sync-every", "4", "--checkpoint-every", "5")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "RETRY_AFTER", (0.0, 0.0))


@pytest.fixture
def args(tmp_path: Path, corpus: Path, brain: Path) -> list[str]:
    return start(corpus, tmp_path / "run", *OPTIONS, "--brain", str(brain))


def whole(tmp_path: Path, corpus: Path) -> Path:
    """A folder with a run without faults and its brain."""
    folder = tmp_path / "whole"
    args = start(corpus, folder / "run", *OPTIONS, "--brain", str(folder / "brain"))
    assert main(args) == 0
    return folder


def failure(capsys: pytest.CaptureFixture[str], args: list[str]) -> str:
    capsys.readouterr()
    assert main(args) == 1
    line = one_line(capsys.readouterr().err)
    assert "--debug" not in line
    return line


def fail_below(patch: pytest.MonkeyPatch, folder: Path, first: int) -> None:
    """Writing of tensor files in there, from this one on, fails as on a full disk."""
    save_file, calls = trees.save_file, 0

    def failing(tensors: Any, path: Path, **rest: Any) -> None:
        nonlocal calls
        if Path(path).is_relative_to(folder):
            calls += 1
            if calls >= first:
                Path(path).write_bytes(b"half")
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
        save_file(tensors, path, **rest)

    patch.setattr(trees, "save_file", failing)


FILES = 2
"""Of tensors, in what an exchange writes."""


@pytest.mark.parametrize("exchange", [1, 2])
def test_a_full_disk_at_an_exchange(
    tmp_path: Path,
    corpus: Path,
    brain: Path,
    args: list[str],
    capsys: pytest.CaptureFixture[str],
    exchange: int,
) -> None:
    expected, out = whole(tmp_path, corpus), tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        fail_below(patch, brain, FILES * exchange + 2)
        line = failure(capsys, args)
    assert "No space left on device" in line
    assert str(brain) in line
    step = 4 * exchange
    assert line.endswith(
        f"; the checkpoint of step {step} is good; go on with fractus run --resume {out}"
    )
    assert kept(brain).number == exchange
    assert main(["brain", "status", str(brain)]) == 0
    assert main(resume(out)) == 0
    assert_same(left(out), left(expected / "run"))
    assert_kept_same(kept(brain), kept(expected / "brain"))


def test_a_full_disk_at_joining(
    tmp_path: Path,
    corpus: Path,
    brain: Path,
    args: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    expected = whole(tmp_path, corpus)
    with pytest.MonkeyPatch.context() as patch:
        fail_below(patch, brain, 1)
        line = failure(capsys, args)
    assert "No space left on device" in line
    assert str(brain) in line
    assert not (tmp_path / "run").exists()
    assert main(args) == 0
    assert_same(left(tmp_path / "run"), left(expected / "run"))
    assert_kept_same(kept(brain), kept(expected / "brain"))


# ----------------------------------------------------------------------------------- read-only


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "tmpfs", str(folder)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip(f"cannot mount a file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def remount(disk: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(disk)], check=True)


def test_a_read_only_disk(
    tmp_path: Path, corpus: Path, disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    brain, out = disk / "brain", tmp_path / "run"
    args = start(corpus, out, *OPTIONS, "--brain", str(brain))
    remount(disk, "ro")
    line = failure(capsys, args)
    assert line == f"fractus: error: cannot make {brain}: Read-only file system"
    assert not out.exists()
    remount(disk, "rw")
    kill_after_step(6, args)
    remount(disk, "ro")
    before = contents(brain)
    for command in (
        resume(out),
        ["brain", "status", str(brain)],
        ["eval", str(brain)],
        start(corpus, tmp_path / "other", *OPTIONS, "--brain", str(brain)),
    ):
        line = failure(capsys, command)
        assert "Read-only file system" in line
        assert str(brain) in line
    assert contents(brain) == before
    remount(disk, "rw")
    assert main(resume(out)) == 0
    assert kept(brain).lanes["text"]["tokens"] == 9 * TOKENS
    assert kept(brain).lanes["text"]["exchanges"] == 3


@pytest.mark.parametrize("name", ["exchanges", "lanes"])
def test_a_folder_that_cannot_be_written(
    tmp_path: Path,
    corpus: Path,
    brain: Path,
    args: list[str],
    capsys: pytest.CaptureFixture[str],
    name: str,
) -> None:
    """A file is in its place."""
    assert main(args) == 0
    folder = (brain / name).rename(tmp_path / "aside")
    (brain / name).write_text("x")
    other = start(corpus, tmp_path / "other", *OPTIONS, "--brain", str(brain))
    line = failure(capsys, other)
    assert str(brain / name) in line
    assert not (tmp_path / "other").exists()
    (brain / name).unlink()
    folder.rename(brain / name)
    assert main(other) == 0


# -------------------------------------------------------------------------------------- the lock


def test_a_lock_held_for_long(
    tmp_path: Path,
    corpus: Path,
    brain: Path,
    args: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.1)
    out, lock = tmp_path / "run", FileLock(brain / ".lock")
    held = f"{brain} has been locked by another process for 0.1 s"
    with after_step(6, lock.acquire):
        line = failure(capsys, args)
    assert line == (
        f"fractus: error: {held}; the checkpoint of step 8 is good; go on with fractus run "
        f"--resume {out}"
    )
    for command in (
        resume(out),
        ["brain", "status", str(brain)],
        ["eval", str(brain)],
        start(corpus, tmp_path / "other", *OPTIONS, "--brain", str(brain)),
    ):
        assert failure(capsys, command) == f"fractus: error: {held}"
    assert not (tmp_path / "other").exists()
    lock.release()
    assert main(resume(out)) == 0
    assert kept(brain).lanes["text"]["tokens"] == 9 * TOKENS


def test_a_lock_held_for_a_while(
    tmp_path: Path, corpus: Path, brain: Path, args: list[str]
) -> None:
    """Is waited for."""
    import threading

    lock = FileLock(brain / ".lock", thread_local=False)

    def hold() -> None:
        lock.acquire()
        threading.Timer(0.5, lock.release).start()

    with after_step(6, hold):
        assert main(args) == 0
    assert kept(brain).lanes["text"]["exchanges"] == 3
    assert left(tmp_path / "run").steps == 9
