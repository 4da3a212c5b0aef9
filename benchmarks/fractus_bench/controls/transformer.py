"""The block that both transformers are made of."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class TransformerBlock(nn.Module):
    """Pre-norm attention and a GELU network four times as wide (GPT-2's block; no dropout)."""

    def __init__(self, d_model: int, n_heads: int, *, n_layers: int, causal: bool) -> None:
        super().__init__()
        self.n_heads, self.causal = n_heads, causal
        self.norm_attention = nn.LayerNorm(d_model)
        self.in_proj = nn.Linear(d_model, 3 * d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self.norm_mlp = nn.LayerNorm(d_model)
        self.mlp_in = nn.Linear(d_model, 4 * d_model)
        self.mlp_out = nn.Linear(4 * d_model, d_model)
        for linear in (self.in_proj, self.out_proj, self.mlp_in, self.mlp_out):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        for linear in (self.out_proj, self.mlp_out):  # as GPT-2: the residual stream stays small
            nn.init.normal_(linear.weight, std=0.02 / (2 * n_layers) ** 0.5)

    def forward(self, h: Tensor) -> Tensor:
        """(B, T, d_model) to the same."""
        q, k, v = (
            part.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
            for part in self.in_proj(self.norm_attention(h)).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        h = h + self.out_proj(y.transpose(1, 2).flatten(2))
        mlp: Tensor = self.mlp_out(F.gelu(self.mlp_in(self.norm_mlp(h))))
        return h + mlp
