"""Processes that are killed while they share a brain; whoever reads it meanwhile finds it whole."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from running import (
    AS_TEXT,
    ENGINE,
    OFTEN,
    PROSE,
    TEXT,
    TOKENS,
    TRAINER,
    Command,
    left,
    resume,
    wait_until,
    write_corpus,
)

from fractus_core.brain.directory import BrainDirectory, Content
from fractus_core.cli.main import main

if TYPE_CHECKING:
    from conftest import Site


class Trained:
    """A lane in a process that is killed now and then, and begun again."""

    steps = 40

    def __init__(self, name: str, data: Path, brain: Path, folder: Path) -> None:
        self.out, self.log = folder / name, folder / f"log-{name}"
        text = [option.replace("--text.", f"--{name}.") for option in TEXT]
        self.start = [
            *("run", "--frontend", name, "--data", str(data), "--out", str(self.out)),
            *(*text, *ENGINE, *TRAINER, *OFTEN),
            *("--steps", str(self.steps), "--sync-every", "3", "--checkpoint-every", "5"),
            *("--brain", str(brain)),
        ]
        self.kills = 0
        self.go_on()

    def go_on(self) -> None:
        begun = (self.out / "run.json").exists()
        if not begun:
            shutil.rmtree(self.out, ignore_errors=True)
        self.command = Command(resume(self.out) if begun else self.start, self.log)

    @property
    def finished(self) -> bool:
        return (self.out / "summary.json").exists()

    def kill(self) -> None:
        self.command.signal(signal.SIGKILL)
        code, _, err = self.command.wait()
        assert code in (0, -signal.SIGKILL), err
        self.kills += code != 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_two_lanes_killed_at_random(
    tmp_path: Path, corpus: Path, brain: Path, site: Site, seed: int
) -> None:
    site.plugin("acme", PROSE.format(target=AS_TEXT))
    draw = random.Random(seed)
    other = write_corpus(tmp_path / "other.jsonl", documents=6, length=200, seed=5)
    lanes = [Trained("text", corpus, brain, tmp_path), Trained("prose", other, brain, tmp_path)]
    directory, seen = BrainDirectory(brain), Content()
    wait_until(lambda: directory.exists)
    until_kill = draw.randrange(30)
    while not all(lane.finished for lane in lanes):
        content = directory.snapshot()
        assert content.number >= seen.number
        if content.number:
            assert_whole(content)
        seen = content
        until_kill -= 1
        for lane in lanes:
            if until_kill <= 0 and lane.kills < 6 and not lane.finished:
                lane.kill()
                until_kill = draw.randrange(5, 40)
            if not lane.command.running and not lane.finished:
                assert lane.command.wait()[0] == -signal.SIGKILL
                lane.go_on()
    for lane in lanes:
        assert lane.command.wait()[0] in (0, -signal.SIGKILL)
    assert sum(lane.kills for lane in lanes) >= 2
    content = directory.snapshot()
    assert_whole(content)
    given = 0
    for name, lane in zip(("text", "prose"), lanes, strict=True):
        record = content.lanes[name]
        assert record.tokens == left(lane.out).values["info"]["spent"]["tokens"]
        assert record.tokens == lane.steps * TOKENS
        assert record.exchanges == lane.steps // 3 + 1  # at every third, and at the end
        given += record.exchanges
    assert given + 2 <= content.number <= given + 4  # some may have died while joining
    assert main(["brain", "status", str(brain)]) == 0
    assert main(["eval", str(brain)]) == 0


def assert_whole(content: Content) -> None:
    """Its weights and what it knows of its lanes are of one moment."""
    engine = content.weights["engine"]
    assert all(tensor.isfinite().all() for tensor in engine.values())
    keys = {key for lane in content.lanes.values() for key in lane.frontends}
    assert set(content.weights) == {"engine", *(f"frontend-{key}" for key in keys)}
    for lane in content.lanes.values():
        assert lane.tokens == lane.steps * TOKENS
    assert sum(lane.exchanges for lane in content.lanes.values()) < content.number
    assert max(lane.last_exchange for lane in content.lanes.values()) == content.number
