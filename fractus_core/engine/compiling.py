"""What `torch.compile` needs of the machine, and how it is given a tick."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fractus_core.errors import FractusError

P = ParamSpec("P")
R = TypeVar("R")


def require_compiler() -> None:
    """Raises `FractusError` if there is no C++ compiler: torch's own error is a page long.

    The one that torch takes: what `CXX` names, else g++, on a Mac clang++.
    """
    named = os.environ.get("CXX")
    compiler = named or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    told = f"{compiler} (CXX is {named or 'not set'})"
    if shutil.which(compiler) is None:
        raise FractusError(f"compiling needs a C++ compiler: there is no {told}; leave it out")
    asked = [compiler] if sys.platform == "win32" else [compiler, "--version"]
    if subprocess.run(asked, capture_output=True, check=False).returncode != 0:
        raise FractusError(f"compiling needs a C++ compiler: {told} does not run; leave it out")


def compile_tick(tick: Callable[P, R]) -> Callable[P, R]:
    """`tick` as one program for each batch size, compiled when it is first called with it.

    Raises:
        FractusError: there is no C++ compiler.
    """
    require_compiler()

    def traced(*args: P.args, **kwargs: P.kwargs) -> R:
        with SingleRowsAsSums():
            return tick(*args, **kwargs)

    return torch.compile(  # type: ignore[call-overload,no-any-return]  # its stubs lag
        traced,
        dynamic=False,
        fullgraph=True,
        isolate_recompiles=True,  # or all that were ever compiled would share one limit
        options={"cpp_wrapper": True},
    )


class SingleRowsAsSums(TorchFunctionMode):
    """While entered, a matrix times a single row is a sum of products.

    Compiled, that is fused with what is before and behind it, where a product of matrices is a
    call of a library: a small tick is mostly calls.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and args[0].numel() == args[0].shape[-1]:
            return _linear(*args, **(kwargs or {}))
        if func is torch.bmm and args[0].shape[1] == 1:
            return (args[0].mT * args[1]).sum(1, keepdim=True)
        return func(*args, **(kwargs or {}))


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    y = (x.unsqueeze(-2) * weight).sum(-1)
    return y if bias is None else y + bias
