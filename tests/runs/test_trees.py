"""Trees of tensors and values come back as they were, from files that any reader can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor, nn

from fractus_core.errors import FractusError
from fractus_core.runs.trees import load_tree, save_tree

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and one.contiguous().view(-1).view(torch.uint8).tolist()
            == other.contiguous().view(-1).view(torch.uint8).tolist()
        )
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and list(one) == list(other)
            and all(type(a) is type(b) for a, b in zip(one, other, strict=True))
            and all(same(one[key], other[key]) for key in one)
        )
    if isinstance(one, list | tuple):
        return (
            isinstance(other, list)
            and len(one) == len(other)
            and all(same(a, b) for a, b in zip(one, other, strict=True))
        )
    return type(one) is type(other) and repr(one) == repr(other)


def tensors() -> st.SearchStrategy[Tensor]:
    def make(shape: list[int], dtype: torch.dtype, transposed: bool, seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        made = (torch.randn(shape, generator=generator) * 50).to(dtype)
        return made.transpose(0, -1) if transposed and shape else made

    return st.builds(
        make,
        st.lists(st.integers(0, 3), max_size=3),
        st.sampled_from(DTYPES),
        st.booleans(),
        st.integers(0, 100),
    )


leaves = (
    tensors()
    | st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=5)
)
trees = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.integers(0, 9) | st.text("ab_{", max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees)
@example({"": torch.ones(1), "__tensor__": {"__tensor__": "x"}})
@example(torch.ones(2))
def test_a_tree_comes_back(tmp_path: Path, tree: Any) -> None:
    save_tree(tmp_path / "t.safetensors", tree)
    assert same(tree, load_tree(tmp_path / "t.safetensors"))


@pytest.mark.parametrize(
    "tree",
    [
        {"a": {"b": torch.zeros(2)}, "a.b": torch.ones(2)},
        {1: torch.zeros(2), "1": torch.ones(2)},
        {"a": [torch.zeros(2)], "a.0": torch.ones(2)},
        {"__metadata__": torch.ones(1)},
    ],
)
def test_paths_that_spell_the_same_name_are_kept_apart(tmp_path: Path, tree: Any) -> None:
    save_tree(tmp_path / "t.safetensors", tree)
    assert same(tree, load_tree(tmp_path / "t.safetensors"))


def test_what_optimizers_have_comes_back(tmp_path: Path) -> None:
    tree = {
        "state": {0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(3, 2)}, 7: {}},
        "param_groups": [{"lr": 0.1 + 0.2, "betas": (0.9, 0.99), "params": [0, 7], "fused": True}],
        "nothing": None,
        "not finite": [float("nan"), float("inf"), -float("inf")],
    }
    save_tree(tmp_path / "t.safetensors", tree)
    assert same(tree, load_tree(tmp_path / "t.safetensors"))


def test_any_reader_sees_the_names_of_a_flat_tree(tmp_path: Path) -> None:
    weights = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)).state_dict()
    save_tree(tmp_path / "t.safetensors", dict(weights))
    found = load_file(tmp_path / "t.safetensors")
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[name], weights[name]) for name in weights)


def test_tied_tensors_are_written_once_and_stay_tied(tmp_path: Path) -> None:
    weight = torch.randn(40, 50)
    save_tree(tmp_path / "t.safetensors", {"in": weight, "out": weight, "other": weight.clone()})
    assert (tmp_path / "t.safetensors").stat().st_size < 2.5 * weight.nbytes
    loaded = load_tree(tmp_path / "t.safetensors")
    assert loaded["in"].data_ptr() == loaded["out"].data_ptr()
    assert loaded["in"].data_ptr() != loaded["other"].data_ptr()
    assert all(torch.equal(tensor, weight) for tensor in loaded.values())


@pytest.mark.parametrize(
    "views",
    [
        lambda x: (x[0], x[1]),
        lambda x: (x[:2], x[1:]),
        lambda x: (x, x[0]),
        lambda x: (x, x.T),
        lambda x: (x, x.view(-1)),
        lambda x: (x.expand(3, 4, 4), x),
    ],
)
def test_views_of_one_tensor_come_back(tmp_path: Path, views: Any) -> None:
    tree = list(views(torch.randn(4, 4)))
    save_tree(tmp_path / "t.safetensors", tree)
    assert same(tree, load_tree(tmp_path / "t.safetensors"))


def test_gradients_are_not_carried(tmp_path: Path) -> None:
    save_tree(tmp_path / "t.safetensors", [nn.Parameter(torch.ones(2))])
    assert not load_tree(tmp_path / "t.safetensors")[0].requires_grad


def test_what_is_loaded_does_not_hang_on_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_tree(path, {"x": torch.ones(1000)})
    loaded = load_tree(path)
    path.write_bytes(b"\0" * path.stat().st_size)
    assert loaded["x"].sum() == 1000


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FractusError, match=r"^\S*gone\.safetensors is missing$"):
        load_tree(tmp_path / "gone.safetensors")


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    save_tree(path, {"x": torch.arange(4), "n": [1, {"y": torch.ones(2)}]})
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(FractusError, match=r"^\S*t\.safetensors is damaged: "):
            load_tree(path)


def test_a_file_of_another_program_is_named(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "t.safetensors"
    for metadata in (None, {"format": "pt"}, {"structure": "{"}):
        save_file({"x": torch.ones(2)}, path, metadata=metadata)
        with pytest.raises(FractusError, match=r"^\S*t\.safetensors is damaged: "):
            load_tree(path)
