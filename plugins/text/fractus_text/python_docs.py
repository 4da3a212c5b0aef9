"""The corpus `python-docs`: the English and the source code that every CPython carries.

Each help topic of `pydoc` and each module of the standard library is one document, in the order of
its name. What distributions of Python package apart, tests, and tables of data are left out, so
that one version of Python gives one corpus, whatever is installed beside it.
"""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from fractus_core.api import FractusError
from fractus_text.readers import Input, Piece, Utf8, read_text

_PACKAGED_APART = {
    "distutils",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtle",
    "turtledemo",
    "venv",
}
_TABLES = {"encodings", "pydoc_data", "html/entities.py"}
_TESTS = {"test", "tests"}


def python_docs() -> list[Input]:
    """The inputs of the corpus, about 9 MB.

    Raises:
        FractusError: this Python has no source of its standard library.
    """
    library = Path(sysconfig.get_path("stdlib"))
    topics = library / "pydoc_data" / "topics.py"
    modules = [
        file
        for top in library.iterdir()
        if _is_documented(top.name.removesuffix(".py"))
        for file in ([top] if top.suffix == ".py" else top.rglob("*.py"))
        if _is_text(file.relative_to(library))
    ]
    if not modules or not topics.is_file():
        raise FractusError(
            f"this Python carries no standard library source in {library}; name other data"
        )
    modules.sort(key=lambda file: file.relative_to(library).as_posix())
    return [
        Input((topics,), "topics", partial(_read_topics, topics)),
        *(Input((file,), "text", partial(read_text, file)) for file in modules),
    ]


def _is_documented(module: str) -> bool:
    return module in sys.stdlib_module_names and module not in _PACKAGED_APART | _TABLES


def _is_text(file: Path) -> bool:
    return file.as_posix() not in _TABLES and not _TESTS.intersection(file.parts)


def _read_topics(file: Path, utf8: Utf8) -> Iterator[Piece]:
    from pydoc_data.topics import topics

    texts = sorted(topics.items())
    size = file.stat().st_size
    for number, (_, text) in enumerate(texts, 1):
        yield Piece(text, True, size * number // len(texts))
