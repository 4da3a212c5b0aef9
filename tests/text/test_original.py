"""The reference dynamics against numbers computed with the original research code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fractus_core.api import FractusError
from fractus_text.original import load_original

REFERENCE = Path(__file__).parents[2].parent / "shared" / "reference"
TOLERANCE = 3e-6
"""Of the largest magnitude. Wrong variants of the equations were seen to pass 2e-5."""

pytestmark = pytest.mark.skipif(not REFERENCE.is_dir(), reason=f"no {REFERENCE}")
folders = pytest.mark.parametrize("folder", ["sparse", "dense"])


def load(folder: str):
    expected = np.load(REFERENCE / folder / "expected.npz")
    about = json.loads((REFERENCE / folder / "about.json").read_text())
    stream = load_original(REFERENCE / folder / "checkpoint.pt", batch_size=about["batch"])
    stream.reset()
    return stream, {name: torch.from_numpy(expected[name]) for name in expected}, about


def agrees(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert actual.shape == expected.shape
    error = (actual - expected).abs().max() / expected.abs().max()
    assert error < tolerance, f"relative error {error:.2e}"


@folders
@torch.no_grad()
def test_chunks(folder: str) -> None:
    stream, expected, about = load(folder)
    for i in range(about["chunks"]):
        logits, lb = stream.tick_chunk_train(expected["tokens"][i])
        agrees(logits, expected[f"logits{i}"])
        agrees(lb, expected[f"lb{i}"])
        agrees(stream.state.thought.unsqueeze(1), expected[f"thought{i}"])
        for b, block in enumerate(stream.state.blocks):
            heads = block.S[:, 0]
            dense = torch.stack([torch.block_diag(*row) for row in heads])
            agrees(dense, expected[f"S{i}_{b}"])
            agrees(block.z[:, 0].flatten(1), expected[f"z{i}_{b}"])


@folders
def test_ticks(folder: str) -> None:
    stream, expected, _ = load(folder)
    for i, tokens in enumerate(expected["tick_tokens"]):
        logits, confidence = stream.tick(tokens)
        agrees(logits, expected[f"tick_logits{i}"])
        agrees(confidence, expected[f"tick_confidence{i}"])


@folders
def test_vector_ticks(folder: str) -> None:
    stream, expected, _ = load(folder)
    for i, vector in enumerate(expected["vecs"]):
        agrees(stream.tick_vec(vector)[0], expected[f"vec_logits{i}"])


@folders
def test_parameter_count(folder: str) -> None:
    stream, _, _ = load(folder)
    checkpoint = torch.load(REFERENCE / folder / "checkpoint.pt", weights_only=True)
    d_model = stream.engine.config.d_model
    modules = (stream.engine, stream.frontend)
    ours = sum(p.numel() for module in modules for p in module.parameters())
    assert ours == checkpoint["params"] - (d_model + 1)  # less the unused salience head


def altered(tmp_path: Path, change) -> Path:
    checkpoint = torch.load(REFERENCE / "sparse" / "checkpoint.pt", weights_only=True)
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    return tmp_path / "checkpoint.pt"


def test_compiled_prefix_and_missing_config(tmp_path: Path) -> None:
    def change(checkpoint) -> None:
        state = checkpoint["model_state"]
        checkpoint["model_state"] = {f"_orig_mod.{name}": t for name, t in state.items()}
        checkpoint["config"] = {"d_head": 32}

    path = altered(tmp_path, change)
    with pytest.raises(FractusError, match="gate_temperature="):
        load_original(path)
    stream = load_original(path, gate_temperature=2.5)
    plain, _, _ = load("sparse")
    assert stream.engine.config == plain.engine.config


def test_carried_state_is_kept(tmp_path: Path) -> None:
    plain, expected, _ = load("sparse")
    with torch.no_grad():
        plain.tick_chunk_train(expected["tokens"][0])

    def change(checkpoint) -> None:
        state = checkpoint["model_state"]
        state["thought_state"] = expected["thought0"]
        for b in range(3):
            state[f"blocks.{b}.attn_S"] = expected[f"S0_{b}"]
            state[f"blocks.{b}.attn_z"] = expected[f"z0_{b}"]

    warm = load_original(altered(tmp_path, change), batch_size=3)
    with torch.no_grad():
        agrees(warm.tick_chunk_train(expected["tokens"][1])[0], expected["logits1"], 1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model_state"].pop("blocks.1.attn.w_out"), "no tensor 'blocks.1.attn.w_out'"),
        (lambda c: c["model_state"].update(extra=torch.zeros(1)), "no place: extra"),
        (lambda c: c["model_state"]["output_head.weight"].add_(1), "differs from observe.weight"),
        (lambda c: c.pop("model_state"), "not an original checkpoint"),
    ],
)
def test_every_tensor_is_accounted_for(tmp_path: Path, change, message: str) -> None:
    with pytest.raises(FractusError, match=message):
        load_original(altered(tmp_path, change))


def test_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(FractusError, match="no such file"):
        load_original(tmp_path / "none.pt")
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(FractusError, match="not an original checkpoint"):
        load_original(tmp_path / "text.pt")
