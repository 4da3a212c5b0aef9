"""What all tests share: a cache for each, and fake distributions of plugins."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from textwrap import dedent

import pytest

from fractus_core.plugins.discovery import discover
from fractus_core.plugins.registry import Registry

# Whatever runs the tests may ignore Ctrl-C, as a shell does for what runs in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FRACTUS_CACHE", str(folder))
    return folder


API = "CommandSpec, FrontendSpec, Option, TrainerSpec, hookimpl"
"""What plugin modules import; not `*`, which includes names that need torch."""


class Site:
    """A folder of installed distributions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(
        self,
        distribution: str,
        version: str = "1.0",
        *,
        entry_points: Mapping[str, str],
        modules: Mapping[str, str],
    ) -> None:
        """`modules` are file contents by path; `entry_points` name plugin modules by key."""
        points = [f"{key} = {module}" for key, module in entry_points.items()]
        info = f"{distribution.replace('-', '_')}-{version}.dist-info"
        core = ["Metadata-Version: 2.1", f"Name: {distribution}", f"Version: {version}"]
        files = {
            **modules,
            f"{info}/METADATA": "\n".join([*core, ""]),
            f"{info}/entry_points.txt": "\n".join(["[fractus]", *points, ""]),
        }
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(content))

    def plugin(self, distribution: str, source: str, version: str = "1.0") -> None:
        """Install a distribution that is one plugin module, with the names of the API in it."""
        module = f"{distribution.replace('-', '_')}_plugin"
        source = f"from fractus_core.api import {API}\n{dedent(source)}"
        self.install(
            distribution,
            version,
            entry_points={distribution: module},
            modules={f"{module}.py": source},
        )

    def discover(self) -> Registry:
        """What these distributions, and no others, add."""
        return discover(metadata.distributions(path=[str(self.folder)]))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield Site(folder)
    for name, module in list(sys.modules.items()):
        if Path(getattr(module, "__file__", None) or "/").is_relative_to(folder):
            del sys.modules[name]
