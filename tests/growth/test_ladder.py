"""`fractus run --stages`: one preset after the other, stopped and gone on with anywhere."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from growing_runs import config, refusal
from running import OFTEN, TEXT, TRAINER, Killed, after_step, kill_after_step, left, resume

from fractus_core.cli.main import main
from fractus_core.growth import run as growing

SMALL = {
    "stage0": {"d_model": 32, "n_heads": 2, "n_layers": 1, "n_experts": 4, "d_ff": 32},
    "stage1": {"d_model": 64, "n_heads": 4, "n_layers": 2, "n_experts": 4, "d_ff": 64},
    "stage2": {"d_model": 96, "n_heads": 6, "n_layers": 3, "n_experts": 8, "d_ff": 96},
}
STAGES = list(SMALL)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages that are trained in no time."""
    for name, fields in SMALL.items():
        monkeypatch.setitem(
            __import__("fractus_core.engine.presets", fromlist=["PRESETS"]).PRESETS,
            name,
            {"expert_rank": 8, "n_oscillators": 8, "coupling_rank": 4} | fields,
        )


def ladder(corpus: Path, out: Path, *options: str) -> list[str]:
    given = ["--data", str(corpus), "--stages", "0,1,2", "--out", str(out), "--steps", "18"]
    return ["run", *given, *TEXT, *TRAINER, *OFTEN, *options]


def spent(out: Path) -> list[int]:
    return [
        json.loads((out / stage / "summary.json").read_text())["steps"]
        for stage in STAGES
        if (out / stage / "summary.json").exists()
    ]


def test_climbed(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(ladder(corpus, out)) == 0
    assert spent(out) == [6, 6, 6]
    for stage in STAGES:
        engine = config(out / stage)["engine"]
        assert {k: engine[k] for k in SMALL[stage]} == SMALL[stage]
    assert [e["grown_from"] for e in config(out / "stage2")["lineage"]] == [
        str(out / "stage0"),
        str(out / "stage1"),
    ]
    told = capsys.readouterr()
    assert told.out.count("finished: 6 steps") == 3
    assert told.out.count("go on with") == 1
    assert "width: d_model 32 -> 64, n_heads 2 -> 4" in told.err
    line = refusal(capsys, resume(out))
    assert f"{out} is finished" in line
    assert f"--resume {out / 'stage2'}" in line
    assert main(resume(out / "stage2", "--steps", "8")) == 0
    assert spent(out) == [6, 6, 8]


def test_paliers_and_json(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    args = ladder(corpus, out, "--json")
    args[args.index("--stages") : args.index("--stages") + 2] = ["--paliers", "stage0,1"]
    assert main(args) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(Path(t["directory"]).name, t["steps"]) for t in told] == [("stage0", 9), ("stage1", 9)]


@pytest.mark.parametrize("stage", [0, 1])
def test_interrupted_and_gone_on_with(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], stage: int
) -> None:
    """Ctrl-C in any stage; the rest is as if there had been none."""
    out, calls = tmp_path / "out", 0

    def interrupt() -> None:
        nonlocal calls
        if calls == stage:
            os.kill(os.getpid(), signal.SIGINT)
        calls += 1

    with after_step(4, interrupt):
        assert main(ladder(corpus, out)) == 130
    told = capsys.readouterr().err
    assert told.strip().splitlines()[-1].endswith(f"go on with fractus run --resume {out}")
    assert spent(out) == [6] * stage
    assert main(resume(out)) == 0
    assert spent(out) == [6, 6, 6]
    assert main(ladder(corpus, tmp_path / "whole")) == 0
    found, whole = left(out / "stage2"), left(tmp_path / "whole" / "stage2")
    assert all((found.tensors[n] == t).all() for n, t in whole.tensors.items())


def test_killed_while_growing(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def kill(*args: object, **kwargs: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(growing, "derive", kill)
        with pytest.raises(Killed):
            main(ladder(corpus, out))
    assert spent(out) == [6]
    assert not (out / "stage1").exists()
    assert main(resume(out)) == 0
    assert spent(out) == [6, 6, 6]


def test_killed_before_the_first_checkpoint(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    kill_after_step(1, ladder(corpus, out))
    assert main(resume(out)) == 0
    assert spent(out) == [6, 6, 6]


def test_settings_are_for_all_stages(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(ladder(corpus, out, "--set", "n_layers=1", "--set", "top_k=1")) == 0
    engines = [config(out / stage)["engine"] for stage in STAGES]
    assert [(e["n_layers"], e["top_k"]) for e in engines] == [(1, 1)] * 3


def test_dry_run(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(ladder(corpus, tmp_path / "out", "--dry-run", "--json")) == 0
    plans = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [p["config"]["engine"]["d_model"] for p in plans] == [32, 64, 96]
    assert not (tmp_path / "out").exists()


def test_refused(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"

    def refused(*args: str, code: int = 2) -> str:
        line = refusal(capsys, list(args), code)
        assert not out.exists()
        return line

    begin = ladder(corpus, out)
    at = begin.index("0,1,2")

    def stages(text: str) -> list[str]:
        return [*begin[:at], text, *begin[at + 1 :]]

    assert "d_model is 64 and cannot shrink to 32" in refused(*stages("1,0"), code=1)
    assert "'stage1' is no larger than 'stage1'" in refused(*stages("1,1"), code=1)
    assert "there is no 'stage7'" in refused(*stages("0,7"))
    assert "there is no ''" in refused(*stages("0,"))
    assert "cannot go with --stages" in refused(*begin, "--preset", "stage1")
    assert "cannot go with --stages" in refused(*begin, "--brain", str(tmp_path / "b"))
    nothing = [str(tmp_path / "none") if arg == str(corpus) else arg for arg in begin]
    assert "none" in refused(*nothing, code=1)
    assert "train split has" in refused(*begin, "--cpu.batch_size", "9999", code=1)
    kill_after_step(1, begin)
    assert "is fixed for all stages" in refusal(capsys, resume(out, "--steps", "30"), 2)
    (out / "ladder.json").write_text("{}")
    assert "ladder.json has format None" in refusal(capsys, resume(out))
