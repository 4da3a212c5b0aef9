"""Which front-ends lanes share, what they are called, and what a brain records of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from toy_brains import ToyLane, core_of, delta, head_of

from fractus_core.brain.config import BrainLink
from fractus_core.brain.directory import BrainDirectory
from fractus_core.errors import FractusError


def test_the_same_front_end_is_shared(brain: Path) -> None:
    """Where the data lies and how often it has its turn make no other of it."""
    first = ToyLane(brain, 0)
    second = ToyLane(brain, 1, data="elsewhere", share=3)
    assert first.key == second.key == "text"
    assert np.array_equal(second.head.get(), first.head.get())
    assert np.array_equal(second.core.get(), first.core.get())
    assert not np.array_equal(second.head.get(), ToyLane(brain.parent / "b", 1).head.get())
    content = BrainDirectory(brain).snapshot()
    assert set(content.weights) == {"engine", "frontend-text"}
    [plugged] = content.frontends.values()
    # What was held out is known: whoever evaluates the brain reads the same.
    assert (plugged.data, plugged.share) == ("corpus", 1)
    assert plugged.fingerprints == {"validation": "corpus-validation"}


@pytest.mark.parametrize(
    "other",
    [{"options": {"tokenizer": "chars"}}, {"schema": {"size": 60}}],
    ids=["options", "schema"],
)
def test_another_tokenizer_has_a_key_of_its_own(
    brain: Path, other: dict[str, dict[str, object]]
) -> None:
    first, second = ToyLane(brain, 0), ToyLane(brain, 1, **other)  # type: ignore[arg-type]
    third = ToyLane(brain, 2, **other)  # type: ignore[arg-type]
    assert (first.key, second.key, third.key) == ("text", "text-2", "text-2")
    before = head_of(brain, "text")
    own = second.head.get()
    assert not np.array_equal(own, before)
    assert np.array_equal(third.head.get(), own)
    second.learn(0 * delta(0), delta(1))
    second.exchange()
    third.exchange()
    np.testing.assert_allclose(head_of(brain, "text-2"), own + delta(1) / 2, atol=1e-6)
    assert np.array_equal(head_of(brain, "text"), before)
    # Of the core they are others' too: by `auto`, text and text-2 are added.
    base = core_of(brain)
    for lane, by in ((first, delta(2)), (second, delta(3)), (third, delta(4))):
        lane.learn(by)
    for lane in (first, second, third):
        lane.exchange()
    np.testing.assert_allclose(
        core_of(brain), base + delta(2) + (delta(3) + delta(4)) / 2, atol=1e-6
    )


def test_names(brain: Path) -> None:
    texts = [ToyLane(brain, seed) for seed in range(3)]
    assert [lane.name for lane in texts] == ["text", "text-2", "text-3"]
    assert ToyLane(brain, 3, frontend="acme:text").name == "acme.text"
    eyes = ToyLane(brain, 4, lane="eyes")
    assert eyes.name == "eyes"
    with pytest.raises(FractusError, match=r"a lane .eyes. already, of the run \S+run-4: give"):
        ToyLane(brain, 5, lane="eyes")


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "x" * 65, "a b", "ä", "x\n"])
def test_bad_names(name: str) -> None:
    if name:
        with pytest.raises(ValueError, match="letters, digits"):
            BrainLink(directory="d", lane=name)
    with pytest.raises(ValueError, match="sync_every = 0"):
        BrainLink(directory="d", sync_every=0)


def test_the_record(brain: Path) -> None:
    lane, _other = ToyLane(brain, 0), ToyLane(brain, 1)
    for turn in range(3):
        lane.learn(delta(turn), tokens=7)
        lane.exchange()
    content = BrainDirectory(brain).snapshot()
    record = content.lanes["text"]
    assert content.number == 5
    assert (record.joined, record.last_exchange, record.exchanges, record.n) == (1, 5, 3, 2)
    assert (record.steps, record.tokens, record.run) == (3, 21, lane.run)
    assert record.frontends == ["text"]
    other = content.lanes["text-2"]
    assert (other.joined, other.last_exchange, other.exchanges, other.tokens) == (2, 2, 0, 0)
    assert {path.name for path in (brain / "exchanges").iterdir()} == {"4", "5", "latest"}
