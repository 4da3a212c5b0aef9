"""`fractus bench` on cells that work, and on cells that do not."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from running import one_line, wait_until

from fractus_bench import groups
from fractus_core.cli.main import main


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    free = SimpleNamespace(available=2e9, total=1e10)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)


@pytest.mark.slow
def test_whatever_a_cell_does_the_others_are_measured(
    fakes: Path, little_memory: None, capsys: pytest.CaptureFixture[str]
) -> None:
    (fakes / "benchmarks" / "results").mkdir(parents=True)
    assert main(["bench", "run", "--threads", "1", "--json", "fake/*"]) == 0
    told = capsys.readouterr()
    found = {r["cell"].removeprefix("fake/"): r for r in json.loads(told.out)}
    saved = json.loads((fakes / "benchmarks" / "results" / "fake.json").read_text())
    assert saved == {r["cell"]: r for r in found.values()}
    assert {name: (r["status"], r["detail"]) for name, r in found.items()} == {
        "work": ("ok", ""),
        "raise": ("crashed", "ValueError: two lines"),
        "die": ("crashed", "killed by SIGSEGV"),
        "sleep": ("timed out", "not done after 1 s"),
        "grow": ("out of memory", found["grow"]["detail"]),
        "skip": ("skipped", "there is nothing to measure"),
    }
    assert "fake/sleep: timed out" in told.err
    assert found["sleep"]["seconds"] < 5
    assert found["grow"]["detail"].endswith(" GB of the 1.6 GB that it may")
    assert 1600 <= found["grow"]["most_memory_mb"] < 6000

    work = found["work"]
    assert work["facts"] == {"threads_seen": "1"}
    assert work["command"] == "fractus bench run 'fake/*' --threads 1"
    assert work["threads"] == 1
    assert work["repeats"] == 3
    assert work["machine"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert work["machine"]["cpu"]
    peak = work["gemm_gflops"]
    assert peak["fp32"] > 1
    rows = work["rows"]
    assert [row["variant"] for row in rows] == ["size 1", "size 2", "size 4"]
    assert rows[0]["speedup"]["median"] == 1
    assert rows[0]["mfu"] == pytest.approx(100 / peak["fp32"])
    assert rows[2]["us_per_token"]["median"] > 2 * rows[0]["us_per_token"]["median"]
    for row in rows:
        taken = row["us_per_token"]
        assert taken["q1"] <= taken["median"] <= taken["q3"]
        assert taken["n"] == 3


def test_a_failure_that_was_asked_for_by_name_is_one_of_the_command(fakes: Path) -> None:
    assert main(["bench", "run", "fake/skip", "fake/ra*", "--out", "there"]) == 0
    assert main(["bench", "run", "fake/raise", "--out", "there"]) == 1
    saved = json.loads((fakes / "there" / "fake.json").read_text())
    assert sorted(saved) == ["fake/raise", "fake/skip"]
    assert saved["fake/raise"]["command"].startswith("fractus bench run fake/raise --threads ")


def test_an_unknown_cell_is_named(fakes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "run", "fake/slep"]) == 2
    told = one_line(capsys.readouterr().err)
    assert told.endswith("there is no cell 'fake/slep'; did you mean fake/sleep?")
    assert not list(fakes.iterdir())


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)]
)
def test_whatever_ends_it_keeps_what_was_finished_and_leaves_no_process(
    number: signal.Signals, code: int, fakes: Path
) -> None:
    program = (
        "import fake_cells, sys; from fractus_bench import groups;"
        "from fractus_core.cli.main import main;"
        "groups.GROUPS = (fake_cells.ENDLESS,); sys.exit(main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "bench", "run", "fake/raise", "fake/wait"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def started() -> list[psutil.Process]:
        """The cell's process, and the one that it started."""
        with suppress(psutil.NoSuchProcess):  # others come and go
            for child in psutil.Process(process.pid).children():
                for grandchild in child.children():
                    if grandchild.name() == "sleep":
                        return [child, grandchild]
        return []

    wait_until(started, 60)
    left = started()
    process.send_signal(number)
    assert process.wait(30) == code
    wait_until(lambda: all(map(ended, left)), 30)
    saved = json.loads((fakes / "bench-results" / "fake.json").read_text())
    assert list(saved) == ["fake/raise"]


def ended(process: psutil.Process) -> bool:
    """A zombie has: nobody may be there to ask after an orphan."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_list_shows_every_cell(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "list"]) == 0
    out = capsys.readouterr().out
    assert main(["bench", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == len({cell["name"] for cell in found}) > 30
    for cell in found:
        assert f"{cell['name']} " in out
        assert cell["summary"] in out
    assert [group.name for group in groups.GROUPS] == list(
        dict.fromkeys(cell["group"] for cell in found)
    )


def test_listing_and_counting_import_no_torch() -> None:
    for arguments in (["list"], ["model", "--preset", "1b"]):
        code = (
            "import sys; from fractus_core.cli.main import main; main(['bench', *sys.argv[1:]]);"
            "print('heavy:', sorted({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout.endswith("heavy: []\n")


def test_model(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--preset", "1b", "--set", "dynamics=reference", "--peak", "200"]
    assert main(["bench", "model", *arguments, "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)
    assert cost["parameters"]["total"] == 1_048_630_177
    active = cost["active_parameters"]
    assert (active["total"] - active["head"]) / 1e6 == pytest.approx(118.8, abs=0.05)
    assert active["total"] / 1e6 == pytest.approx(183.1, abs=0.05)
    assert cost["microseconds_training"] == pytest.approx(cost["training_flops"] / 200e9 * 1e6)

    assert main(["bench", "model", *arguments]) == 0
    out = capsys.readouterr().out
    assert "1,048,630,177" in out
    for wrong in ("--set d_model=7", "--peak nan", "--peak inf"):
        assert main(["bench", "model", *wrong.split()]) == 2
        assert re.split("[ =]", wrong)[1] in one_line(capsys.readouterr().err)


def test_results_that_could_not_be_saved_are_not_measured(
    fakes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fakes / "there").mkdir()
    (fakes / "there" / "fake.json").write_text("{")
    (fakes / "file").write_text("")
    for directory, words in {"there": "damaged results", "file/below": "cannot make"}.items():
        assert main(["bench", "run", "fake/work", "--out", directory]) == 1
        told = capsys.readouterr()
        assert words in told.err and "fake/work" not in told.err
    assert (fakes / "there" / "fake.json").read_text() == "{"
