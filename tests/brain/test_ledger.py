"""Two lanes that die at random: the brain is what it was plus all that was ever saved, once."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from brains import killed_at
from toy_brains import ToyLane, core_of, delta

from fractus_core.brain.directory import BrainDirectory
from fractus_core.brain.lane import BrainLane

POINTS = [
    (owner, name, when)
    for owner, name in ((BrainDirectory, "write"), (BrainLane, "_take"))
    for when in ("before", "after")
]


class Account:
    """A lane, what it has learnt, and what of that is safe."""

    def __init__(self, brain: Path, seed: int, frontend: str) -> None:
        self.lane = ToyLane(brain, seed, frontend=frontend, rule="auto")
        self.learnt, self.tokens = 0 * delta(0), 0
        self.save()

    def save(self) -> None:
        self.saved = self.lane.checkpoint(), self.learnt, self.tokens

    def learn(self, seed: int) -> None:
        self.lane.learn(delta(seed), tokens=seed)
        self.learnt, self.tokens = self.learnt + delta(seed), self.tokens + seed

    def exchange(self) -> None:
        self.save()
        self.lane.exchange()

    def resume(self, *, exchanging: bool) -> None:
        """As a run does: an exchange that was begun is made."""
        self.lane.leave()
        checkpoint, self.learnt, self.tokens = self.saved
        self.lane.resume(checkpoint)
        if exchanging or self.lane.brain.has_given():
            self.lane.exchange()


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_whatever_was_saved_is_given_once(brain: Path, seed: int) -> None:
    draw = random.Random(seed)
    accounts = [Account(brain, 0, "text"), Account(brain, 1, "vision")]
    base = core_of(brain)
    for turn in range(1, 60):
        account = draw.choice(accounts)
        match draw.randrange(5):
            case 0 | 1:
                account.learn(turn)
            case 2:
                account.save()
            case 3:
                account.exchange()
            case 4 if draw.random() < 0.5:
                account.resume(exchanging=False)
            case 4:
                owner, name, when = draw.choice(POINTS)
                with killed_at(owner, name, 1, when):
                    account.exchange()
                account.resume(exchanging=True)
    for account in accounts:
        account.exchange()
    expected = base + accounts[0].learnt + accounts[1].learnt
    np.testing.assert_allclose(core_of(brain), expected, rtol=0, atol=1e-4)
    lanes = BrainDirectory(brain).snapshot().lanes
    assert [lanes[name].tokens for name in ("text", "vision")] == [a.tokens for a in accounts]
    assert all(account.tokens for account in accounts)


def test_what_a_killed_process_left_is_not_there(brain: Path) -> None:
    """Half of an exchange, and one that was written but not acknowledged."""
    lane, exchanges = ToyLane(brain), brain / "exchanges"
    base = core_of(brain)
    (exchanges / ".2.4711").mkdir()
    (exchanges / ".2.4711" / "engine.safetensors").write_bytes(b"half")
    shutil.copytree(exchanges / "1", exchanges / "3")
    assert BrainDirectory(brain).snapshot().number == 1
    lane.learn(delta(1))
    lane.exchange()
    assert {path.name for path in exchanges.iterdir()} == {"1", "2", "latest"}
    np.testing.assert_allclose(core_of(brain), base + delta(1), rtol=0, atol=1e-6)
