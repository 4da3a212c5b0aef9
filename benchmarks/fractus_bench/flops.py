"""What an engine costs, by arithmetic alone. Imports no torch.

A product of (m, n) by (n, p) is 2 m n p operations. Only products count: not norms, sines or sums,
which is the custom for model FLOPs.
"""

from __future__ import annotations

from fractus_core.engine import EngineConfig

SECTION, MAX_PIECE = 32, 128
"""As in `fractus_core.engine`: a chunk is cut into pieces, and those into sections."""
TRAINING = 3
"""A backward pass has two products for each of the forward pass."""
BYTES = 4
"""Of a weight or of a number in the state."""


def parameters(config: EngineConfig, vocabulary: int) -> dict[str, int]:
    """By part; `head` is the embedding, which is tied to it."""
    d, H, L, N, r = (
        config.d_model,
        config.n_heads,
        config.n_levels,
        config.n_oscillators,
        config.coupling_rank,
    )
    reference = config.dynamics == "reference"
    projections = _projections(config)
    attention = (projections + 1) * (d * d + d) + (L if reference else H * L)
    attention += 2 * d if config.output_gate else 0
    phases = N + N * r + r + (d * N + N if config.phase_drive == "projection" else 0)
    scales = 2 if reference and config.expert_rank else 0
    experts = config.n_experts * (_expert_matrices(config) + config.d_ff + d + scales)
    norms = 3 * 2 * d + (2 * d if config.token_shift else 0)
    outside = (2 * d if config.final_norm else 0) + (d if config.thought_stride else 0) + d + 1
    return {
        "attention": config.n_layers * attention,
        "phases": config.n_layers * phases,
        "experts": config.n_layers * experts,
        "norms and gates": config.n_layers * norms + outside,
        "head": vocabulary * d,
    }


def active_parameters(config: EngineConfig, vocabulary: int) -> dict[str, int]:
    """Those that work on one token: of the experts `top_k`."""
    parts = parameters(config, vocabulary)
    return parts | {"experts": parts["experts"] * config.top_k // config.n_experts}


def forward_flops(config: EngineConfig, vocabulary: int, chunk_len: int) -> dict[str, float]:
    """Per token, by part, in a forward pass over chunks of `chunk_len` tokens.

    `vocabulary` 0 leaves the head out.
    """
    d, N = config.d_model, config.n_oscillators
    drive = 2 * d * N if config.phase_drive == "projection" else 0
    coupling = 4 * 2 * 2 * N * N  # four evaluations, each of a product for sines and for cosines
    gates = 2 * 2 * config.n_experts
    return {
        "attention projections": config.n_layers * 2.0 * (_projections(config) + 1) * d * d,
        "attention products": config.n_layers * _attention_products(config, chunk_len),
        "phases": config.n_layers * float(drive + coupling + gates),
        "experts": config.n_layers * 2.0 * config.top_k * _expert_matrices(config),
        "head": 2.0 * d * vocabulary,
    }


def bytes_per_token(config: EngineConfig, vocabulary: int) -> dict[str, int]:
    """Moved for one tick of one stream: active weights are read, the state is read and written."""
    d, D = config.d_model, config.d_head
    levels = 1 if config.dynamics == "reference" else config.n_levels
    sums = levels * config.n_heads * D * (D + 1)
    state = config.n_layers * (sums + config.n_oscillators + 2 * d) + d
    return {
        "weights": BYTES * sum(active_parameters(config, vocabulary).values()),
        "state": 2 * BYTES * state,
    }


def _projections(config: EngineConfig) -> int:
    """To queries, keys, values and the gate."""
    return 4 if config.output_gate else 3


def _expert_matrices(config: EngineConfig) -> int:
    """Numbers in the matrices of one expert."""
    d, f, r = config.d_model, config.d_ff, config.expert_rank
    return 2 * r * (d + f) if r else 2 * d * f


def _attention_products(config: EngineConfig, chunk_len: int) -> float:
    """Of one block, per token: what is carried, gained, and seen within each section."""
    D = config.d_head
    longest = chunk_len
    if config.dynamics == "default":
        longest = min(chunk_len, MAX_PIECE, config.thought_stride or MAX_PIECE)
    total = 0.0
    for start in range(0, chunk_len, longest):
        piece = min(longest, chunk_len - start)
        total += piece * 2 * 2 * D * (D + 1)
        if piece > 1:  # a single token is the recurrence itself
            c = SECTION if piece % SECTION == 0 else piece
            total += piece * (2 * c * D + 2 * c * (D + 1))
    return config.n_heads * config.n_levels * total / chunk_len
