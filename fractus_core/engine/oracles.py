"""Slow, plain forms of the engine's kernels, for tests and benchmarks to hold the fast against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fractus_core.engine.attention import EPS
from fractus_core.engine.experts import LowRankExperts

# Attention: q, k (B, H, L, C, D); v (B, H, C, D); S (B, L, H, D, D); z (B, L, H, D);
# log_decay (H, L). Each returns y (B, H, L, C, D) and the sums after the chunk, as `attend` does.


def attention_recurrence(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The definition, token by token."""
    g = log_decay.T.exp()[..., None]
    outputs = []
    for t in range(q.shape[3]):
        q_t, k_t = q[:, :, :, t].transpose(1, 2), k[:, :, :, t].transpose(1, 2)
        v_t = v[:, None, :, t]
        S = g[..., None] * S + k_t.unsqueeze(-1) * v_t.unsqueeze(-2)
        z = g * z + k_t
        numerator = (q_t.unsqueeze(-1) * S).sum(-2)
        outputs.append(numerator / ((q_t * z).sum(-1, keepdim=True) + EPS))
    return torch.stack(outputs, dim=3).transpose(1, 2), S, z


def attention_einsum(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The masked quadratic form, as one einsum per term."""
    C = q.shape[3]
    i = torch.arange(C)
    distance = (i[:, None] - i[None, :]).clamp(min=0)
    decays = (log_decay[..., None, None] * distance).exp() * (i[:, None] >= i[None, :])
    carried = (log_decay[..., None] * (i + 1)).exp()
    left = (log_decay[..., None] * (C - 1 - i)).exp()
    scores = torch.einsum("bhlid,bhljd,hlij->bhlij", q, k, decays)
    numerator = torch.einsum("bhlij,bhje->bhlie", scores, v)
    numerator = numerator + torch.einsum("bhlid,hli,blhde->bhlie", q, carried, S)
    denominator = scores.sum(-1) + torch.einsum("bhlid,hli,blhd->bhli", q, carried, z)
    whole = (log_decay.T * C).exp()
    S = whole[..., None, None] * S + torch.einsum("bhljd,hlj,bhje->blhde", k, left, v)
    z = whole[..., None] * z + torch.einsum("bhljd,hlj->blhd", k, left)
    return numerator / (denominator.unsqueeze(-1) + EPS), S, z


def attention_prefix_sum(
    q: Tensor, k: Tensor, v: Tensor, S: Tensor, z: Tensor, log_decay: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The sums at every token at once, by a cumulative sum; for double precision, short chunks."""
    C = q.shape[3]
    i = torch.arange(1, C + 1)
    grown = (log_decay[..., None] * -i).exp()[..., None]  # g^-i, undone below
    shrunk = (log_decay[..., None] * i).exp()[..., None]
    kg = k * grown
    S_t = (kg.unsqueeze(-1) * v[:, :, None, :, None, :]).cumsum(3) + S.transpose(1, 2)[
        :, :, :, None
    ]
    z_t = kg.cumsum(3) + z.transpose(1, 2)[:, :, :, None]
    S_t, z_t = S_t * shrunk[..., None], z_t * shrunk
    numerator = (q.unsqueeze(-1) * S_t).sum(-2)
    y = numerator / ((q * z_t).sum(-1, keepdim=True) + EPS)
    return y, S_t[:, :, :, -1].transpose(1, 2), z_t[:, :, :, -1].transpose(1, 2)


def experts_gather(experts: LowRankExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Gather each token's own matrices. x (T, d_model); weights and chosen (T, K)."""
    y = torch.zeros_like(x)
    for k in range(chosen.shape[1]):
        e = chosen[:, k]
        inner = x.unsqueeze(1) @ experts.V1[e] @ experts.U1[e] + experts.b1[e].unsqueeze(1)
        hidden = F.gelu(inner, approximate="tanh")
        outer = hidden @ experts.V2[e] @ experts.U2[e] + experts.b2[e].unsqueeze(1)
        y = y + weights[:, k, None] * outer.squeeze(1)
    return y
