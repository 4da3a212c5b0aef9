"""What a brain holds, read without our code, and processes that die at a certain point."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from running import Killed
from safetensors.torch import load_file
from torch import Tensor


@dataclass(frozen=True)
class Kept:
    """What decides how lanes go on, but for clock and place."""

    tensors: dict[str, Tensor]
    info: dict[str, Any]

    @property
    def number(self) -> int:
        number: int = self.info["number"]
        return number

    @property
    def lanes(self) -> dict[str, dict[str, Any]]:
        lanes: dict[str, dict[str, Any]] = self.info["lanes"]
        return lanes


def kept(brain: Path) -> Kept:
    """The newest that was acknowledged."""
    newest = brain / "exchanges" / (brain / "exchanges" / "latest").read_text().strip()
    tensors = {
        f"{path.stem}/{name}": tensor
        for path in sorted(newest.glob("*.safetensors"))
        for name, tensor in load_file(path).items()
    }
    info = json.loads((newest / "checkpoint.json").read_text())["info"]
    for lane in info["lanes"].values():
        del lane["time"], lane["run"]
    for frontend in info["frontends"].values():
        del frontend["data"]
    return Kept(tensors, info)


def assert_same_weights(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Bit for bit."""
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def assert_kept_same(found: Kept, expected: Kept) -> None:
    assert found.info == expected.info
    assert_same_weights(found.tensors, expected.tensors)


@contextmanager
def killed_at(owner: Any, name: str, number: int, when: str) -> Iterator[None]:
    """Die right before, or after, call `number` of `owner.name`, counted from 1."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number and when == "before":
            raise Killed
        result = original(*args, **kwargs)
        if calls == number:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, counted)
        try:
            yield
        except Killed:
            gc.collect()  # with what it held, its locks
        else:
            raise AssertionError(f"it ended before call {number} of {name}")
