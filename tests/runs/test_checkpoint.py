"""A checkpoint is complete or not there, whenever the process dies; damage is found and named."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import running  # noqa: F401 - what forked processes have imported
import torch

from fractus_core.errors import FractusError
from fractus_core.runs import checkpoint as module
from fractus_core.runs import files
from fractus_core.runs.checkpoint import Checkpoint, CheckpointStore


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "checkpoints")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_AFTER", (0.0, 0.0))


def made(number: int) -> Checkpoint:
    trees = {"engine": {"w": torch.full((3,), float(number))}, "trainer": {"steps": number}}
    return Checkpoint({"step": number, "cursors": {"text": {"chunk": number}}}, trees)


def assert_is(found: Checkpoint, number: int) -> None:
    assert dict(found.info) == {"step": number, "cursors": {"text": {"chunk": number}}}
    assert found.trees["trainer"] == {"steps": number}
    assert found.trees["engine"]["w"].tolist() == [number] * 3
    assert found.trees.keys() == {"engine", "trainer"}


def newest(store: CheckpointStore) -> Checkpoint:
    name = store.newest()
    assert name is not None
    return store.load(name)


# --------------------------------------------------------------------------------------- in order


def test_there_is_nothing_at_first(store: CheckpointStore) -> None:
    assert store.names() == []
    assert store.newest() is None
    store.rewind(None)
    assert not store.directory.exists()


def test_what_is_saved_is_loaded(store: CheckpointStore) -> None:
    path = store.save(100, made(1))
    assert path == store.directory / "100"
    assert_is(store.load("100"), 1)
    assert store.newest() == "100"
    assert {p.name for p in store.directory.iterdir()} == {"100", "latest"}


def test_the_last_two_are_kept(store: CheckpointStore) -> None:
    for number in (8, 9, 10, 11):  # as texts, not in order
        store.save(number, made(number))
    assert store.names() == ["10", "11"]
    assert_is(store.load("10"), 10)
    assert_is(newest(store), 11)


def test_rewinding_drops_what_is_later(store: CheckpointStore) -> None:
    store.save(1, made(1))
    store.save(2, made(2))
    (store.directory / ".3.99").mkdir()  # of a killed save
    store.rewind("1")
    assert {p.name for p in store.directory.iterdir()} == {"1", "latest"}
    assert_is(newest(store), 1)
    store.save(2, made(22))
    assert_is(newest(store), 22)


# ------------------------------------------------------------------------------------------ killed


def primitives() -> list[tuple[Any, str]]:
    """All through which a save reaches the disk."""
    return [
        (Path, "mkdir"),
        (Path, "rename"),
        (Path, "replace"),
        (Path, "unlink"),
        (Path, "write_text"),
        (module, "save_tree"),
        (os, "fsync"),
        (shutil, "rmtree"),
    ]


def on_each_call(act: Callable[[], None], after: bool) -> None:
    """Have `act` called before or after each call of a primitive."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if not after:
                act()
            result = original(*args, **kwargs)
            if after:
                act()
            return result

        return wrapped

    for owner, name in primitives():
        setattr(owner, name, wrap(getattr(owner, name)))


def save_and_die(directory: Path, number: int, at: int, after: bool) -> None:
    """Save checkpoint `number` and be killed at the primitive call `at`; else exit with 0."""
    count = 0

    def act() -> None:
        nonlocal count
        if count == at:
            os.kill(os.getpid(), signal.SIGKILL)
        count += 1

    store = CheckpointStore(directory)
    checkpoint = made(number)
    on_each_call(act, after)
    store.save(number, checkpoint)


@pytest.mark.parametrize(
    ("after", "stride"),
    [(False, 4), *(pytest.param(after, 1, marks=pytest.mark.slow) for after in (False, True))],
)
def test_killed_anywhere_the_newest_checkpoint_is_complete(
    store: CheckpointStore, after: bool, stride: int
) -> None:
    context = multiprocessing.get_context("forkserver")
    seen = set()
    number = 2
    store.save(1, made(1))
    store.save(2, made(2))
    for at in range(0, 100, stride):
        process = context.Process(
            target=save_and_die, args=(store.directory, number + 1, at, after), daemon=True
        )
        process.start()
        process.join()
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        found = newest(store).info["step"]
        assert found in (number, number + 1)
        seen.add(found - number)
        assert_is(newest(store), found)
        # As a resume does; then the next save goes through.
        store.rewind(store.newest())
        assert [p.name for p in store.directory.iterdir() if p.name.startswith(".")] == []
        store.save(found + 1, made(found + 1))
        number = found + 1
    assert process.exitcode == 0
    assert at > 12  # kills
    assert seen == {0, 1}


# ----------------------------------------------------------------------------------------- failing


def failing(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, times: int) -> list[int]:
    """Have a function fail so many times, as on a full disk; the list counts the calls."""
    original, calls = getattr(owner, name), [0]

    def fail(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] <= times:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, fail)
    return calls


PLACES = [
    (module, "save_tree"),
    (module, "write_json"),
    (module, "write_text"),
    (module, "fsync"),
    (Path, "rename"),
    (Path, "mkdir"),
]


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda value: str(value))
def test_a_passing_fault_is_survived(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    store.save(1, made(1))
    with monkeypatch.context() as patch:
        assert failing(patch, owner, name, times=1)
        store.save(2, made(2))
    assert_is(newest(store), 2)
    assert {p.name for p in store.directory.iterdir()} == {"1", "2", "latest"}


@pytest.mark.parametrize("call", [1, 2])
def test_a_passing_fault_after_the_rename_is_survived(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """The directory is pushed to the disk, and the pointer is written, after the rename."""
    store.save(1, made(1))
    original, calls = files.fsync, [0]

    def fail_after_rename(path: Path) -> None:
        if (store.directory / "2").exists():
            calls[0] += 1
            if calls[0] == call:
                raise OSError(errno.EIO, "Input/output error")
        original(path)

    monkeypatch.setattr(module, "fsync", fail_after_rename)
    monkeypatch.setattr(files, "fsync", fail_after_rename)
    store.save(2, made(2))
    assert_is(newest(store), 2)


@pytest.mark.parametrize(("owner", "name"), PLACES, ids=lambda value: str(value))
def test_a_lasting_fault_leaves_what_was_there(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    store.save(1, made(1))
    with monkeypatch.context() as patch:
        calls = failing(patch, owner, name, times=1000)
        with pytest.raises(FractusError, match=r"^cannot save the checkpoint \S*2: .*No space"):
            store.save(2, made(2))
        assert calls[0] == 3
    assert_is(newest(store), 1)
    assert [p.name for p in store.directory.iterdir() if p.name.startswith(".")] == []


def test_no_fault_of_pruning_loses_the_new_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old checkpoints that cannot be removed are no reason to end a run."""
    for number in (1, 2):
        store.save(number, made(number))
    remove = os.rmdir

    def fail(path: str, **kwargs: Any) -> None:
        if Path(path).name == "1":
            raise OSError(errno.EBUSY, "Device or resource busy", path)
        remove(path, **kwargs)

    monkeypatch.setattr(os, "rmdir", fail)
    store.save(3, made(3))
    assert_is(newest(store), 3)
    assert store.names() == ["1", "2", "3"]


# ----------------------------------------------------------------------------------------- damaged


@pytest.mark.parametrize("file", ["engine.safetensors", "trainer.safetensors", "checkpoint.json"])
def test_a_missing_file_is_named(store: CheckpointStore, file: str) -> None:
    store.save(1, made(1))
    (store.directory / "1" / file).unlink()
    with pytest.raises(FractusError, match=rf"1/{file} is missing"):
        store.load("1")


@pytest.mark.parametrize("file", ["engine.safetensors", "trainer.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("keep", [0, 1, 50, -1])
def test_a_file_cut_short_is_named(store: CheckpointStore, file: str, keep: int) -> None:
    path = store.save(1, made(1)) / file
    path.write_bytes(path.read_bytes().rstrip()[:keep])
    with pytest.raises(FractusError, match=rf"1/{file} is damaged: "):
        store.load("1")


@pytest.mark.parametrize("file", ["engine.safetensors", "trainer.safetensors"])
def test_every_flipped_bit_is_found(store: CheckpointStore, file: str) -> None:
    path = store.save(1, made(1)) / file
    whole = path.read_bytes()
    for place in range(len(whole)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(FractusError, match=rf"1/{file} is damaged: its checksum"):
            store.load("1")


@pytest.mark.parametrize(
    ("bit", "stride"), [(2, 7), *(pytest.param(bit, 1, marks=pytest.mark.slow) for bit in range(8))]
)
def test_every_flipped_bit_of_the_manifest_is_found(
    store: CheckpointStore, bit: int, stride: int
) -> None:
    """Its counters and cursors decide how the run goes on."""
    path = store.save(1, made(1)) / "checkpoint.json"
    whole = path.read_bytes()
    unnoticed = []
    for place in range(0, len(whole), stride):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << bit
        path.write_bytes(flipped)
        try:
            assert_is(store.load("1"), 1)
        except FractusError as error:
            assert "/1/" in str(error)
        except AssertionError:
            unnoticed.append((place, bytes(flipped[place - 8 : place + 8])))
    assert unnoticed == []


@pytest.mark.parametrize(
    "content",
    ["{}", "[]", "null", "3", '{"info": {}}', '{"info": {}, "files": 3}', '{"files": {"a": {}}}'],
)
def test_a_manifest_of_another_shape_is_named(store: CheckpointStore, content: str) -> None:
    (store.save(1, made(1)) / "checkpoint.json").write_text(content)
    with pytest.raises(FractusError, match=r"1/checkpoint\.json is damaged: "):
        store.load("1")


def test_a_manifest_that_leaves_a_file_out_is_found(store: CheckpointStore) -> None:
    path = store.save(1, made(1)) / "checkpoint.json"
    manifest = json.loads(path.read_text())
    del manifest["files"]["engine.safetensors"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(FractusError, match="damaged"):
        store.load("1")
