"""Data sets of the Hugging Face Hub, and the libraries of the extra `datasets`."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from fractus_core.errors import FractusError

_SECONDS = 10
"""How long the Hub may take to say that it knows a name."""


def import_extra(module: str, needed_by: Path | str) -> Any:
    """A module of the extra `datasets`; `FractusError` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise FractusError(
            f"{needed_by} needs {module.partition('.')[0]}: pip install 'fractus[datasets]'"
        ) from None


def load_hub_dataset(data: str, name: str, split: str | None = None) -> Any:
    """A `datasets.Dataset`, or a dictionary of all its splits where `split` is None.

    Args:
        data: What the user wrote, for messages.
        name: Of the data set, or the path of a folder that holds one.

    Raises:
        FractusError: there is no such data set, or no network.
    """
    datasets = import_extra("datasets", data)
    if not (Path(name).exists() or datasets.config.HF_HUB_OFFLINE):
        _ask_hub(data, name)
    try:
        return datasets.load_dataset(name, split=split)
    except Exception as error:  # Whatever the builder of the data set meets.
        raise FractusError(f"cannot load {data}: {_first_line(error)}") from None


def _ask_hub(data: str, name: str) -> None:
    # `datasets` tries for half a minute before it says that there is no network.
    hub = import_extra("huggingface_hub", data)
    try:
        hub.HfApi().dataset_info(name, timeout=_SECONDS)
    except Exception as error:  # Of several libraries, and of every release others.
        raise FractusError(
            f"cannot find {data} on the Hugging Face Hub ({_first_line(error)}); "
            "check the name and the network, or set HF_HUB_OFFLINE=1 to use a copy you have"
        ) from None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
