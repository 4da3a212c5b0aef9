"""`metrics.jsonl`: a line each, cut back to the checkpoint."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from fractus_core.errors import FractusError
from fractus_core.runs.metrics import MetricsLog


def test_lines_are_json_with_the_clock_apart(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        assert log.size() == 0
        log.write("train", 10, {"loss": 2.5, "lane": "tëxt"}, {"seconds": 1.5})
        first = log.size()
        log.write("eval", 20, {"evaluation": {"loss_warm": 2.0}}, {"seconds": 2.0})
        assert first < log.size() == path.stat().st_size
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"kind": "train", "step": 10, "loss": 2.5, "lane": "tëxt", "wall": {"seconds": 1.5}},
        {"kind": "eval", "step": 20, "evaluation": {"loss_warm": 2.0}, "wall": {"seconds": 2.0}},
    ]


def test_a_line_is_in_the_file_at_once(tmp_path: Path) -> None:
    with MetricsLog(tmp_path / "m") as log:
        log.write("train", 1, {}, {})
        assert (tmp_path / "m").read_text().count("\n") == 1


def test_what_came_after_the_checkpoint_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    with MetricsLog(path) as log:
        log.write("train", 1, {}, {})
        size = log.size()
        log.write("train", 2, {}, {})
    kept = path.read_bytes()[:size]
    path.write_bytes(path.read_bytes()[:-3])  # killed within the second line
    with MetricsLog(path, size=size) as log:
        assert path.read_bytes() == kept
        log.write("train", 2, {"again": True}, {})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_file_too_short_is_said_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n')
    with MetricsLog(path, size=100) as log:
        log.write("train", 2, {}, {})
    assert capsys.readouterr().err == f"fractus: {path} has 12 bytes, 100 were written\n"
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_tensorboard_gets_the_numbers(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    figures = {
        "loss": 2.5,
        "lane": "text",
        "evaluation": {"routing": {"blocks": [{"entropy": 0.5, "hits": [1, 2]}]}},
    }
    with MetricsLog(tmp_path / "m", tensorboard=tmp_path / "board") as log:
        log.write("train", 3, figures, {"seconds": 1.0})
    events = EventAccumulator(str(tmp_path / "board"))
    events.Reload()
    found = {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }
    assert found == {
        "train/loss": [(3, 2.5)],
        "train/evaluation/routing/blocks/0/entropy": [(3, 0.5)],
        "train/seconds": [(3, 1.0)],
    }


def test_tensorboard_that_is_not_installed_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(FractusError, match=r"pip install 'fractus\[tensorboard\]'"):
        MetricsLog(tmp_path / "m", tensorboard=tmp_path / "board")
