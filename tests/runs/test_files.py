"""Files are replaced whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fractus_core.errors import FractusError
from fractus_core.runs.files import read_json, write_json, write_text


def test_what_is_written_is_read(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, True], "ü": {"b": "x\ny"}}
    write_json(tmp_path / "v.json", value)
    write_json(tmp_path / "v.json", value)
    assert read_json(tmp_path / "v.json") == value
    assert (tmp_path / "v.json").read_text().endswith("}\n")
    assert [p.name for p in tmp_path.iterdir()] == ["v.json"]


@pytest.mark.parametrize("failing", ["fsync", "replace", "write"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "v.txt"
    write_text(path, "old")

    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    match failing:
        case "fsync":
            monkeypatch.setattr(os, "fsync", fail)
        case "replace":
            monkeypatch.setattr(Path, "replace", fail)
        case "write":
            monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["v.txt"]


def test_content_is_on_the_disk_before_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watch_fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").resolve()
        events.append("directory" if path == tmp_path else path.read_text())
        fsync(descriptor)

    def watch_replace(path: Path, target: Path) -> Path:
        events.append("replaced")
        return replace(path, target)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(Path, "replace", watch_replace)
    write_text(tmp_path / "v.txt", "new")
    assert events == ["new", "replaced", "directory"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FractusError, match=r"^\S*gone\.json is missing$"):
        read_json(tmp_path / "gone.json")


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"{} {}"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "v.json").write_bytes(content)
    with pytest.raises(FractusError, match=r"^\S*v\.json is damaged: "):
        read_json(tmp_path / "v.json")
