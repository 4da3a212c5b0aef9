"""What the tests of the examples share."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch

if TYPE_CHECKING:
    from conftest import Site

AUDIO = Path(__file__).parents[2] / "examples" / "fractus-audio"

torch.set_num_threads(1)
# So that it can be imported; Fractus knows of it only through its metadata, see `installed`.
sys.path.insert(0, str(AUDIO))


@pytest.fixture(autouse=True)
def installed(site: Site) -> Path:
    """The metadata that an installation of the example would leave, and all that it would."""
    project = tomllib.loads((AUDIO / "pyproject.toml").read_text())["project"]
    site.install(
        project["name"],
        project["version"],
        entry_points=project["entry-points"]["fractus"],
        modules={},
    )
    [metadata] = site.folder.iterdir()
    return metadata
