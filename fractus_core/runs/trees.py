"""Nested dicts and lists of tensors and JSON values, as one safetensors file each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fractus_core.errors import FractusError
from fractus_core.runs.files import fsync

_TENSOR = "__tensor__"


def save_tree(path: Path, tree: Any) -> None:
    """Write `tree`; of a flat dict of tensors, any safetensors reader sees just these names."""
    tensors: dict[str, Tensor] = {}
    names: dict[tuple[Any, ...], str] = {}  # tied tensors are written once
    storages: set[int] = set()

    def flatten(node: Any, name: str) -> Any:
        if isinstance(node, Tensor):
            identity = (node.device, node.data_ptr(), node.shape, node.stride(), node.dtype)
            if node.numel() == 0 or identity not in names:
                while name in tensors or name == "__metadata__":
                    name += "'"
                names[identity] = name
                tensor = node.detach().cpu().contiguous()
                storage = tensor.untyped_storage()
                # safetensors refuses views of one memory.
                shared = storage.data_ptr() in storages
                tensors[name] = tensor.clone() if shared else tensor
                storages.add(storage.data_ptr())
            return {_TENSOR: names[identity]}
        if isinstance(node, dict):
            # JSON turns integer keys, as optimizers have, into strings; so pairs keep them.
            pairs = [[k, flatten(v, f"{name}.{k}" if name else str(k))] for k, v in node.items()]
            return {"pairs": pairs}
        if isinstance(node, list | tuple):
            items = [flatten(v, f"{name}.{i}" if name else str(i)) for i, v in enumerate(node)]
            return {"items": items}
        assert node is None or isinstance(node, bool | int | float | str), f"{name}: {type(node)}"
        return {"value": node}

    structure = flatten(tree, "")
    save_file(tensors, path, metadata={"structure": json.dumps(structure)})
    fsync(path)


def load_tree(path: Path) -> Any:
    """Raises `FractusError` naming the file if it is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            structure = json.loads(file.metadata()["structure"])
            # Cloned: a mapped tensor may be unaligned, and then products round differently.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FractusError(f"{path} is missing") from None
    except (SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise FractusError(f"{path} is damaged: {error}") from error

    def build(node: dict[str, Any]) -> Any:
        if _TENSOR in node:
            return tensors[node[_TENSOR]]
        if "pairs" in node:
            return {k: build(v) for k, v in node["pairs"]}
        if "items" in node:
            return [build(v) for v in node["items"]]
        return node["value"]

    return build(structure)
