"""Data sets of small images, made with Pillow and pyarrow alone."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from fractus_core.api import Option
from fractus_vision.plugin import fractus_frontends

SIZE = 16


def options(**changed: Any) -> dict[str, Any]:
    """The front-end's options for small grids; the rest as by default."""
    [spec] = fractus_frontends()
    made = {option.name: option.default for option in spec.options if isinstance(option, Option)}
    assert set(changed) <= set(made)
    return made | {"size": SIZE, "batch_size": 4} | changed


def pixels(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(SIZE, SIZE, 3), a picture that no other number gives."""
    made = np.random.default_rng(number).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    made[0, 0] = divmod(number, 256)[0], number % 256, 7
    return made


def encoded(number: int, kind: str = "png") -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels(number)).save(data, kind)
    return data.getvalue()


def write_folder(root: Path, classes: dict[str, Sequence[int]]) -> Path:
    """Class folders of numbered PNG files."""
    for name, numbers in classes.items():
        (root / name).mkdir(parents=True)
        for number in numbers:
            (root / name / f"{number:05}.png").write_bytes(encoded(number))
    return root


def write_parquet(
    file: Path,
    images: Sequence[bytes | None],
    labels: Sequence[Any],
    names: Sequence[str] = (),
    columns: tuple[str, str] = ("img", "label"),
) -> Path:
    """A table as the library `datasets` writes it; `names` are those of the classes."""
    kind = pa.string() if any(isinstance(label, str) for label in labels) else pa.int64()
    image, label = columns
    struct = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [None if data is None else {"bytes": data, "path": None} for data in images]
    table = pa.table({image: pa.array(rows, struct), label: pa.array(labels, kind)})
    if names:
        features = {label: {"names": list(names), "_type": "ClassLabel"}}
        info = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": info})
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, file)
    return file
