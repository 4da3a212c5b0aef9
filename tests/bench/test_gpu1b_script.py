"""The script that measures a GPU, on a CPU."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu1b.sh"


@pytest.mark.slow
def test_it_measures_all_at_a_small_size(tmp_path: Path) -> None:
    size = ("--device", "cpu", "--preset", "stage0", "--vocabulary", "1024")
    few = ("--seconds", "0.5", "--most-rows", "4", "--chunk-len", "32", "--out", str(tmp_path))
    environment = os.environ | {"PYTHON": sys.executable}
    subprocess.run([SCRIPT, *size, *few], check=True, env=environment, capture_output=True)
    result = json.loads((tmp_path / "result.json").read_text())
    assert [v.get("batch_size") for v in result["variants"]] == [1, 4, *[max_of(result)] * 2]
    for variant in result["variants"]:
        assert variant["status"] == "ok"
        assert 0 < variant["mfu_percent"] < 100
        assert variant["tokens_per_second"] > 0
    assert [v.get("compile") for v in result["variants"][2:]] == [False, True]
    assert result["variants"][3]["compile_breaks"] == 0
    for name in ("profile.csv", "profile-compile.csv"):
        with (tmp_path / name).open() as file:
            lines = list(csv.DictReader(file))
        assert len(lines) > 20
        assert float(lines[0]["self_cpu_us"]) > 0


def max_of(result: dict[str, list[dict[str, float]]]) -> float:
    tried = result["variants"][:2]
    return max(tried, key=lambda variant: variant["tokens_per_second"])["batch_size"]


def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    import torch
    from click.testing import CliRunner

    from fractus_bench.gpu1b import main
    from fractus_core.api import FractusError

    if torch.cuda.is_available():
        pytest.skip("there is one")
    done = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert isinstance(done.exception, FractusError)
    assert "no CUDA device" in str(done.exception)
