"""How often something is done."""

from __future__ import annotations

import pytest

from fractus_core.runs.cadence import Cadence


@pytest.mark.parametrize(
    ("text", "steps", "seconds"),
    [
        ("500", 500, None),
        ("1", 1, None),
        ("90s", None, 90.0),
        ("10m", None, 600.0),
        ("2h", None, 7200.0),
    ],
)
def test_steps_and_times(text: str, steps: int | None, seconds: float | None) -> None:
    cadence = Cadence.parse(text)
    assert (cadence.steps, cadence.seconds) == (steps, seconds)
    assert Cadence.parse(str(cadence)) == cadence


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-5", "5d", "s", "1.5m", " 5", "5 s", "5S", "1e3", "ten", "5\n"]
)
def test_what_is_no_cadence_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="is no cadence: write 500 \\(steps\\), 90s, 10m or 1h"):
        Cadence.parse(text)


def test_due() -> None:
    assert not Cadence(steps=3).due(steps=2, seconds=1e9)
    assert Cadence(steps=3).due(steps=3, seconds=0)
    assert Cadence(steps=3).due(steps=4, seconds=0)
    assert not Cadence(seconds=3.0).due(steps=10**9, seconds=2.9)
    assert Cadence(seconds=3.0).due(steps=0, seconds=3.0)


@pytest.mark.parametrize("seconds", [1234567.0, 1e7])
def test_a_long_time_survives_its_text(seconds: float) -> None:
    assert Cadence.parse(str(Cadence(seconds=seconds))).seconds == seconds
