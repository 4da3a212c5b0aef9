"""The chunked attention against its slow forms and against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engines import awake, tiny
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fractus_core.engine import EngineConfig
from fractus_core.engine.attention import DecayFactors, attend, level_offsets, log_decays
from fractus_core.engine.oracles import (
    attention_einsum,
    attention_prefix_sum,
    attention_recurrence,
)

PHI = (1 + 5**0.5) / 2
Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, ...]]
ORACLES: list[Attention] = [attention_recurrence, attention_einsum, attention_prefix_sum]

B, H, L, D = (st.integers(1, n) for n in (2, 3, 3, 4))
shapes = st.tuples(B, H, L, st.integers(1, 20), D)
sections = st.integers(1, 3)
decays = st.sampled_from(["none", "golden"])


def decay_rates(n_heads: int, n_levels: int, kind: str) -> Tensor:
    return log_decays(
        EngineConfig(d_model=8 * n_heads, n_heads=n_heads, n_levels=n_levels, decay=kind)
    ).double()


def inputs(shape: tuple[int, ...], seed: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """q, k, v, S, z in the middle of a stream; features and their sums are positive."""
    B, H, L, C, D = shape
    g = torch.Generator().manual_seed(seed)

    def normal(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    q, k = (F.elu(normal(B, H, L, C, D)) + 1 for _ in range(2))
    v, S, z = normal(B, H, C, D), normal(B, L, H, D, D), F.elu(normal(B, L, H, D)) + 1
    return [t.to(dtype).requires_grad_() for t in (q, k, v, S, z)]


def chunked(*arguments: Tensor, sections: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    *inputs, log_decay = arguments
    length = inputs[0].shape[3] // sections
    return attend(*inputs, DecayFactors.powers(log_decay, length))


def outputs_and_gradients(
    attention: Attention, tensors: list[Tensor], log_decay: Tensor
) -> list[Tensor]:
    """y, S, z after the chunk, and the gradients of a loss on all three."""
    results = attention(*tensors, log_decay)
    g = torch.Generator().manual_seed(9)
    loss = sum(
        (r * torch.randn(r.shape, generator=g, dtype=torch.float64).to(r.dtype)).sum()
        for r in results
    )
    assert isinstance(loss, Tensor)
    return [*(r.detach() for r in results), *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("oracle", ORACLES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-3)], ids=str
)
@given(shape=shapes, sections=sections, kind=decays, seed=st.integers(0, 1000))
@example(shape=(1, 1, 1, 1, 1), sections=1, kind="golden", seed=0)
@example(shape=(2, 1, 3, 20, 4), sections=1, kind="none", seed=0)
@example(shape=(1, 2, 2, 6, 2), sections=3, kind="golden", seed=0)
@settings(max_examples=30)
def test_agrees_with_oracle(
    oracle: Attention,
    dtype: torch.dtype,
    tolerance: float,
    shape: tuple[int, ...],
    sections: int,
    kind: str,
    seed: int,
) -> None:
    if shape[3] % sections:
        sections = 1
    fast = partial(chunked, sections=sections)
    rates = decay_rates(shape[1], shape[2], kind)
    expected = outputs_and_gradients(oracle, inputs(shape, seed), rates)
    actual = outputs_and_gradients(fast, inputs(shape, seed, dtype), rates.to(dtype))
    names = ("y", "S", "z", "dq", "dk", "dv", "dS", "dz")
    for name, ours, theirs in zip(names, actual, expected, strict=True):
        assert ours.dtype == dtype, name
        error = (ours.double() - theirs).abs().max() / max(1.0, theirs.abs().max().item())
        assert error < tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("sections", [1, 2])
@pytest.mark.parametrize("kind", ["none", "golden"])
def test_gradcheck(kind: str, sections: int) -> None:
    tensors = inputs((1, 2, 2, 4, 2), seed=3)
    rates = decay_rates(2, 2, kind)
    assert torch.autograd.gradcheck(lambda *t: chunked(*t, rates, sections=sections), tensors)


def test_key_gradient_through_the_denominator() -> None:
    """With constant values numerator and denominator cancel: no key can change the output."""
    q, k, v, _, z = inputs((2, 2, 2, 12, 3), seed=4)
    log_decay = decay_rates(2, 2, "golden")

    def key_gradient(v: Tensor) -> Tensor:
        y, _, _ = chunked(q, k, v, 5.0 * z.unsqueeze(-1).expand(-1, -1, -1, -1, 3), z, log_decay)
        return torch.autograd.grad(y.sum(), k)[0]

    assert key_gradient(v).abs().max() > 1e-2
    assert key_gradient(torch.full_like(v, 5.0)).abs().max() < 1e-4  # not 0 for the epsilon


def test_key_gradient_through_the_returned_denominator() -> None:
    """z_C = g^C z_0 + sum_j g^(C-1-j) k_j, so that dz_C / dk_j = g^(C-1-j)."""
    q, k, v, S, z = inputs((1, 2, 3, 7, 2), seed=5)
    log_decay = decay_rates(2, 3, "golden")
    after = chunked(q, k, v, S, z, log_decay)[2]
    weight = torch.randn_like(after)  # (B, L, H, D)
    gradient = torch.autograd.grad((after * weight).sum(), k)[0]
    age = torch.arange(6, -1, -1)
    g = (log_decay[..., None] * age).exp()  # (H, L, C)
    expected = g[None, ..., None] * weight.transpose(1, 2).unsqueeze(3)
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("pieces", [[1] * 1000, [128] * 7 + [104]], ids=["ticks", "chunks"])
def test_a_thousand_ones_in_bf16(pieces: list[int]) -> None:
    S, z = torch.zeros(1, 1, 1, 2, 2), torch.zeros(1, 1, 1, 2)
    with torch.autocast("cpu", torch.bfloat16):
        for C in pieces:
            ones = torch.ones(1, 1, 1, C, 2, dtype=torch.bfloat16)
            factors = DecayFactors.powers(torch.zeros(1, 1), C)
            _, S, z = attend(ones, ones, ones[:, :, 0], S, z, factors)
    for sums in (S, z):
        assert sums.dtype == torch.float32
        assert (sums == 1000.0).all()


# ------------------------------------------------------------------------------------- the module


def test_level_offsets() -> None:
    torch.testing.assert_close(level_offsets(3), torch.tensor([1.0, 0.38196601, 0.14589803]))


def test_features() -> None:
    attention = awake(tiny(n_levels=3)).blocks[0].attention
    x = torch.linspace(-30, 30, 602).view(1, 1, 2, 301, 1)
    f = attention.features(x)
    assert f.shape == (1, 1, 2, 3, 301, 1)
    for level in range(3):
        s = x.double().flatten() + PHI ** (-2 * level)
        expected = torch.where(s > 0, s + 1, s.exp())
        torch.testing.assert_close(
            f[0, 0, :, level].double().flatten(), expected, rtol=1e-5, atol=1e-7
        )


@pytest.mark.parametrize("length", [1, 2])
@pytest.mark.parametrize("output_gate", [False, True])
def test_module_against_plain_loops(output_gate: bool, length: int) -> None:
    """On a chunk of three sections."""
    config = tiny(output_gate=output_gate, n_levels=3)
    engine = awake(config).double()
    attention = engine.blocks[0].attention
    H, L, D, C = config.n_heads, config.n_levels, config.d_head, 3 * length
    x = torch.randn(1, C, config.d_model, dtype=torch.float64)
    decay = DecayFactors.powers(engine.log_decay, length)
    S0, z0 = torch.zeros(1, L, H, D, D).double(), torch.zeros(1, L, H, D).double()
    actual = attention(x, S0, z0, decay)[0][0].detach().numpy()

    w = {name: p.detach().numpy() for name, p in attention.named_parameters()}
    projected = x[0].numpy() @ w["in_proj.weight"].T + w["in_proj.bias"]
    parts = projected.reshape(C, -1, H, D)
    mixed = np.zeros((C, H, D))
    for h in range(H):
        mix = np.exp(w["level_logits"][h]) / np.exp(w["level_logits"][h]).sum()
        for level in range(L):
            g = math.exp(engine.log_decay[h, level].item())
            S, z = np.zeros((D, D)), np.zeros(D)
            for t in range(C):
                s = parts[t, :2, h] + PHI ** (-2 * level)
                q, k = np.where(s > 0, s + 1, np.exp(s))
                S = g * S + np.outer(k, parts[t, 2, h])
                z = g * z + k
                mixed[t, h] += mix[level] * (q @ S) / (q @ z)
    if output_gate:
        mean, variance = mixed.mean(-1, keepdims=True), mixed.var(-1, keepdims=True)
        mixed = (mixed - mean) / np.sqrt(variance + 1e-5)
        mixed = mixed * w["head_weight"].reshape(H, D) + w["head_bias"].reshape(H, D)
        mixed *= parts[:, 3] / (1 + np.exp(-parts[:, 3]))
    expected = mixed.reshape(C, -1) @ w["out_proj.weight"].T + w["out_proj.bias"]
    np.testing.assert_allclose(actual, expected, atol=1e-5)


# -------------------------------------------------------------------------------------- the decays


@pytest.mark.parametrize(("n_heads", "n_levels"), [(1, 2), (2, 2), (6, 3), (20, 2), (4, 1)])
def test_time_constants(n_heads: int, n_levels: int) -> None:
    log_decay = decay_rates(n_heads, n_levels, "golden")
    assert log_decay.shape == (n_heads, n_levels)
    constants = (-1 / log_decay).flatten().sort().values
    *forgetting, lasting = constants.tolist()
    assert lasting > 1e6
    assert forgetting[0] == pytest.approx(2.0)
    if len(forgetting) > 1:
        assert 2000 < forgetting[-1] < 10_000
        ratios = constants[1:-1] / constants[:-2]
        torch.testing.assert_close(ratios, ratios[:1].expand_as(ratios), rtol=1e-5, atol=0)
    if len(forgetting) == 17:
        assert forgetting == pytest.approx([2 * PHI**i for i in range(17)], rel=1e-5)


def test_one_head_and_level_lasts() -> None:
    """At least one head per block forgets nothing or nearly nothing."""
    assert -1 / decay_rates(1, 1, "golden").item() > 1e6


def test_no_decay() -> None:
    assert (decay_rates(3, 2, "none") == 0).all()


@pytest.mark.parametrize("C", [1, 5])
def test_decay_factors(C: int) -> None:
    log_decay = decay_rates(2, 2, "golden")
    factors = DecayFactors.powers(log_decay, C)
    assert factors.length == C
    g = log_decay.exp()
    for i in range(C):
        torch.testing.assert_close(factors.query[:, 0, :, i, 0], g ** (i + 1))
        torch.testing.assert_close(factors.key[:, 0, :, 0, i], g ** (C - 1 - i))
        for j in range(C):
            expected = g ** (i - j) if i >= j else torch.zeros_like(g)
            torch.testing.assert_close(factors.mask[:, 0, :, i, j], expected)
    torch.testing.assert_close(factors.carry[..., 0, 0], g**C)
