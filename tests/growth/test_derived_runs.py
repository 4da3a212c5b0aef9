"""A run derived from another is whole, or is not there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from growing_runs import restored, train
from running import contents, resume

from fractus_core.cli.main import main
from fractus_core.errors import FractusError
from fractus_core.runs.derive import Origin, derive
from fractus_core.runs.directory import RunDirectory


@pytest.fixture
def origin(corpus: Path, tmp_path: Path) -> Origin:
    train(corpus, tmp_path / "run")
    return Origin.read(tmp_path / "run")


def test_what_is_given_has_changed_and_the_rest_is_the_origins(
    origin: Origin, tmp_path: Path
) -> None:
    out = tmp_path / "deeper" / "out"
    weights = {name: t + 1 for name, t in origin.checkpoint.trees["frontend-text"].items()}
    config = dataclasses.replace(origin.config, eval_every=5)
    place = {"epoch": 0, "chunk": 3}
    derive(
        origin,
        RunDirectory(out),
        config=config,
        trees={"frontend-text": weights},
        cursors={"text": place},
        lineage={"changed_in": "a test"},
    )
    found, was = Origin.read(out), origin
    assert found.config.eval_every == 5
    assert found.config.lineage == [
        {"changed_in": "a test", "spent": dataclasses.asdict(was.spent)}
    ]
    assert found.spent.steps == 0
    assert found.checkpoint.info["cursors"] == {"text": place}
    assert found.checkpoint.trees.keys() == was.checkpoint.trees.keys()
    assert torch.equal(found.checkpoint.trees["frontend-text"]["weight"], weights["weight"])
    for tree in ("engine", "rng"):
        for name, tensor in was.checkpoint.trees[tree].items():
            assert torch.equal(found.checkpoint.trees[tree][name], tensor)
    assert restored(out).lanes[0].source.cursor() == place
    assert main(resume(out, "--steps", "2")) == 0


def test_what_is_there_is_left_alone(origin: Origin, tmp_path: Path) -> None:
    before = contents(tmp_path / "run")
    with pytest.raises(FractusError, match="exists"):
        derive(origin, origin.directory, config=origin.config, trees={}, lineage={})
    assert contents(tmp_path / "run") == before
