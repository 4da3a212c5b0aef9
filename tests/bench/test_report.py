"""The page and its pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from running import contents, one_line

from fractus_bench import headlines, pictures
from fractus_bench.groups import GROUPS
from fractus_bench.records import Chart
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


def variant(name: str, **rest: object) -> dict[str, object]:
    return {"variant": name, **rest}


HEADLINES = {
    "step/V50257": (
        [
            variant("reference path", chunk=32, mfu=10.0, speedup=spread(1.0)),
            variant("engine", chunk=128, mfu=50.4, speedup=spread(5.0)),
        ],
        "Training step, vocabulary 8,192, chunks of 128: engine",
        "5 times as fast as the reference path in chunks of 32; MFU 50 %, not 10 %",
    ),
    "experts/step": (
        [
            variant("16 experts", us_per_token=spread(100.0)),
            variant("32 experts", us_per_token=spread(500.0)),
            variant("128 experts", us_per_token=spread(125.0)),
        ],
        "Training step: 128 experts",
        "1.25 times as long as with 16 experts",
    ),
    "decode/flat": (
        [
            variant("eager, token 10", us_per_tick=spread(1000.0), ticks_per_second=1000.0),
            variant("compiled, token 10", us_per_tick=spread(300.0), ticks_per_second=3333.0),
            variant("eager, token 99", us_per_tick=spread(1250.0), ticks_per_second=800.0),
            variant("compiled, token 99", us_per_tick=spread(300.0), ticks_per_second=3333.0),
        ],
        "Decoding with one stream, eager: token 99",
        "1.25 times as long as token 10; 800 tokens a second",
    ),
    "decode/streams": (
        [
            variant("eager, 1 stream", streams=1, us_per_token=1000, tokens_per_second=1000.0),
            variant("eager, 8 streams", streams=8, us_per_token=250, tokens_per_second=4000.0),
            variant("compiled, 1 stream", streams=1, us_per_token=333, tokens_per_second=3000.0),
        ],
        "Decoding side by side, eager: 8 streams",
        "4 times as many tokens as one; 4,000 a second",
    ),
    "data/start": (
        [
            variant("1 tokens", start_ms=spread(1.0), heap_mb=0.5, mapped_mb=1.0),
            variant("9 tokens", start_ms=spread(22.0), heap_mb=1.5, mapped_mb=4.0),
        ],
        "Opening and reading a corpus of 9 tokens, once it is in the cache",
        "22 ms to the first batch, 4 MB more memory than with 1 tokens",
    ),
    "race/chars-60s": (
        [
            variant("fractus", loss=spread(1.7)),
            variant("GPT, 4 layers", loss=1.9),
            variant("GPT, 3 layers", loss=1.8),
        ],
        "Tiny Shakespeare: best loss after 60 s",
        "fractus 1.700 nats, GPT 1.800 nats",
    ),
    "race/cifar": (
        [variant("fractus", accuracy=0.75), variant("CNN", accuracy=0.8)],
        "CIFAR-10: best accuracy after 60 s",
        "fractus 0.750, CNN 0.800",
    ),
}


def test_what_matters_most_is_told_in_short(fakes: Path) -> None:
    for cell, (rows, _, _) in HEADLINES.items():
        facts = {"vocabulary": 8192, "seconds": 60}
        save(fakes / "there", result(cell, rows=rows, facts=facts))
    save(fakes / "there", result("step/V8192") | {"status": "crashed", "detail": "no"})
    assert main(["bench", "report", "there", "-o", "page.md"]) == 0
    short = (fakes / "page.md").read_text().partition("## In short")[2].partition("##")[0]
    lines = [[cell.strip() for cell in line.split("|")] for line in short.splitlines()]
    for cell, (_, what, measured) in HEADLINES.items():
        assert ["", what, measured, f"`{cell}`", "1", ""] in lines
    assert "V8192" not in short


def test_every_headline_is_of_a_cell_that_there_is() -> None:
    """Else it is lost when a cell is renamed."""
    assert headlines._TELL.keys() <= {cell.name for group in GROUPS for cell in group.cells}


def test_growth_is_drawn_with_its_law_and_the_flop_model() -> None:
    """y = 3 x^0.5, though operations grow in proportion."""
    rows = [{"n": n, "us_per_token": 3 * n**0.5, "mflop_per_token": 7.0 * n} for n in (1, 4, 16)]
    axes = Figure().add_subplot()
    pictures._growth(axes, Chart(title="", x="n", y="us_per_token", kind="growth"), rows)
    measured, law, flops = axes.lines
    assert list(measured.get_ydata()) == pytest.approx([3, 6, 12])
    assert law.get_label() == "power law, exponent 0.50"
    assert list(law.get_ydata()) == pytest.approx([3, 6, 12])
    assert flops.get_label() == "FLOP model"
    assert list(flops.get_ydata()) == pytest.approx([1.5, 6, 24])


def test_a_flat_line_looks_flat() -> None:
    rows = [{"n": n, "us_per_token": 100 + n % 2, "mflop_per_token": 1.0} for n in range(1, 9)]
    axes = Figure().add_subplot()
    pictures._growth(axes, Chart(title="", x="n", y="us_per_token", kind="growth"), rows)
    low, high = axes.get_ylim()
    assert low < 60 and high > 180


def test_no_line_of_prose_is_overlong(measured: Path, fakes: Path) -> None:
    command = f"fractus bench run {' '.join(f'fake/cell-{n}' for n in range(40))} --threads 2"
    save(measured, result("fake/raise", rows=[], command=command, facts={"told": "much " * 40}))
    assert main(["bench", "report", "there", "-o", "page.md"]) == 0
    prose = [li for li in (fakes / "page.md").read_text().splitlines() if not li.startswith("|")]
    assert max(map(len, prose)) <= 100
    assert " --threads 2` on" in " ".join(prose)


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
    Path("trained").mkdir()
    Path("trained/run.json").write_text("{}")
    assert main(["bench", "report", "trained"]) == 1
    assert "no results in trained" in one_line(capsys.readouterr().err)
    for content in ("{", "[]", "[1]", '{"fake/work": {"cell": "other"}}', '{"fake/work": 3}'):
        (measured / "fake.json").write_text(content)
        assert main(["bench", "report", "there"]) == 1
        assert "damaged results there/fake.json" in one_line(capsys.readouterr().err)
