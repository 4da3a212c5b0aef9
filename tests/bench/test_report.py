"""The page and its pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import contents, one_line

from fractus_bench.results import save
from fractus_core.cli.main import main


def spread(median: float) -> dict[str, float]:
    return {"median": median, "q1": 0.9 * median, "q3": 1.25 * median, "n": 5}


def result(cell: str, **rest) -> dict[str, object]:
    return {
        "cell": cell,
        "status": "ok",
        "detail": "",
        "date": "2030-01-02T03:04:05+00:00",
        "command": "fractus bench run 'fake/*' --threads 2",
        "threads": 2,
        "machine": {"cpu": "Abacus", "cores": 2, "commit": None},
        "gemm_gflops": {"fp32": 100.0, "bf16": 300.0},
        "facts": {"vocabulary": 8192},
        **rest,
    }


@pytest.fixture
def measured(fakes: Path) -> Path:
    rows = [
        {"variant": "slow", "size": 2**n, "us_per_token": spread(1234.5 * 2**n), "mfu": None}
        for n in range(3)
    ] + [
        {"variant": "fast", "size": 2**n, "us_per_token": spread(2.5), "mfu": 41.237}
        for n in range(3)
    ]
    directory = fakes / "there"
    save(directory, result("fake/work", rows=rows))
    failed = {"status": "timed out", "detail": "not done after 1 s", "gemm_gflops": None}
    save(directory, result("fake/sleep") | failed)
    return directory


def test_a_section_has_rows_failures_and_a_picture(measured: Path, fakes: Path) -> None:
    assert main(["bench", "report", "there", "-o", "docs/page.md"]) == 0
    page = (fakes / "docs" / "page.md").read_text()
    section = page.partition("## Fake")[2]
    assert "Not real." in section
    assert "Made with `fractus bench run 'fake/*' --threads 2` on machine 1." in section
    [line] = [line for line in section.splitlines() if "| slow" in line and "4,938" in line]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells == ["work", "slow", "4", "4,938 (4,444 - 6,172)", ""]
    assert "41.2" in section
    assert "- `fake/work`: vocabulary 8,192" in section
    assert "- `fake/sleep` timed out: not done after 1 s" in section
    assert "![fake](pictures/performance-fake.png)" in section
    picture = fakes / "docs" / "pictures" / "performance-fake.png"
    assert picture.read_bytes().startswith(b"\x89PNG")
    [machine] = [line for line in page.splitlines() if "Abacus" in line]
    assert "2030-01-02" in machine


def test_the_same_results_give_the_same_bytes(measured: Path, fakes: Path) -> None:
    pages = []
    for name in ("one", "two"):
        assert main(["bench", "report", "there", "-o", f"{name}/page.md"]) == 0
        pages.append(contents(fakes / name))
    assert pages[0] == pages[1]
    assert len(pages[0]) == 3


def test_a_cell_is_replaced_and_others_stay(measured: Path) -> None:
    save(measured, result("fake/work", rows=[], facts={"new": 1}))
    saved = json.loads((measured / "fake.json").read_text())
    assert list(saved) == ["fake/sleep", "fake/work"]
    assert saved["fake/work"]["facts"] == {"new": 1}


def test_what_is_missing_or_damaged_is_named(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "report", "nowhere"]) == 1
    assert "no results in nowhere" in one_line(capsys.readouterr().err)
    for content in ("{", "[]", "[1]", '{"fake/work": {"cell": "other"}}', '{"fake/work": 3}'):
        (measured / "fake.json").write_text(content)
        assert main(["bench", "report", "there"]) == 1
        assert "damaged results there/fake.json" in one_line(capsys.readouterr().err)
