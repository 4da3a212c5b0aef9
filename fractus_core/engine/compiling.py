"""What `torch.compile` needs of the machine."""

from __future__ import annotations

import os
import shutil

from fractus_core.errors import FractusError

_COMPILERS = ("g++", "clang++", "c++", "cl")


def require_compiler() -> None:
    """Raises `FractusError` if there is no C++ compiler: torch's own error is a page long."""
    names = [os.environ.get("CXX", ""), *_COMPILERS]
    if not any(name and shutil.which(name) for name in names):
        raise FractusError("compiling needs a C++ compiler, and there is none: leave it out")
