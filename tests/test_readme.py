"""Every command of the README runs, in the order in which it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    for line in block.splitlines()
]


def test_the_first_two_lines_install() -> None:
    assert [line for line in COMMANDS if "pip install" in line] == [
        "pip install . && fractus run",
        "pip install '.[dev]' && pytest",
    ]


def hurried(command: str) -> str:
    """With a tenth of its minutes, or of the three that it has where none are given."""
    if command == "fractus run":
        command += " --minutes 3"
    return re.sub(
        r"--minutes ([\d.]+)", lambda given: f"--minutes {float(given[1]) / 10:g}", command
    )


@pytest.mark.slow
def test_every_command_runs(tmp_path: Path) -> None:
    environment = os.environ | {
        "FRACTUS_CACHE": str(tmp_path / "cache"),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    (tmp_path / "README.md").write_text(README, encoding="utf-8")
    # Installing, and running the tests within the tests, is what CI does with these lines.
    fractus = [
        line.removeprefix("pip install . && ") for line in COMMANDS if not line.endswith("pytest")
    ]
    assert len(fractus) >= 8
    for command in fractus:
        done = subprocess.run(
            shlex.split(hurried(command)),
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        assert done.stdout, command
