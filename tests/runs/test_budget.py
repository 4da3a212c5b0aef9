"""How long a run goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fractus_core.runs.budget import Budget, Spent, duration


def test_progress_is_that_of_the_limit_nearest_to_its_end() -> None:
    spent = Spent(tokens=300, steps=30, seconds=3.0)
    assert Budget(tokens=1200).progress(spent) == 0.25
    assert Budget(steps=40).progress(spent) == 0.75
    assert Budget(seconds=6.0).progress(spent) == 0.5
    assert Budget(tokens=1200, steps=40, seconds=6.0).progress(spent) == 0.75
    assert Budget(tokens=100, steps=40).progress(spent) == 3.0
    assert Budget(tokens=5, steps=5, seconds=5.0).progress(Spent()) == 0.0


def test_what_has_no_limit_never_progresses() -> None:
    assert Budget().unlimited
    assert Budget().progress(Spent(10**12, 10**9, 1e9)) == 0.0
    for limits in ({"tokens": 1}, {"steps": 1}, {"seconds": 0.1}):
        assert not Budget(**limits).unlimited  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
@pytest.mark.parametrize("name", ["tokens", "steps", "seconds"])
def test_a_limit_is_positive(name: str, limit: float) -> None:
    with pytest.raises(ValueError, match=rf"{limit} {name}"):
        Budget(**{name: limit})  # type: ignore[arg-type]


def test_it_is_said_in_words() -> None:
    assert Budget(tokens=1_000_000).describe() == "1,000,000 tokens"
    assert Budget(steps=5, seconds=90.0).describe() == "5 steps or 90 s"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.31, "0.3 s"), (59.96, "60 s"), (119, "119 s"), (150, "2.5 min"), (7200, "2 h")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_torch_is_not_imported() -> None:
    code = (
        "import sys, fractus_core.runs.budget, fractus_core.runs.cadence, fractus_core.runs.config;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
