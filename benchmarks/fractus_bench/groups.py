"""All cells, by group. Imports no torch: a cell's function is imported where it is measured."""

from __future__ import annotations

from typing import Any

from fractus_bench.records import Cell, Chart, Group

VOCABULARY = 8192
"""Of the front-end's own tokenizer; most cells use it."""


def _cell(name: str, summary: str, function: str, **rest: Any) -> Cell:
    """`function` is one of the group's module; what is not a field of `Cell` is its argument."""
    fields = {key: rest.pop(key) for key in ("limit", "repeats") if key in rest}
    group = name.partition("/")[0]
    target = f"fractus_bench.cells.{group}:{function}"
    return Cell(name=name, summary=summary, target=target, arguments=rest, **fields)


ATTENTION = Group(
    name="attention",
    text="The four forms of the fractal attention in one layer, 8 rows of width 256, forward and "
    "backward. The engine uses the chunked one; the others are kept as oracles. `error` is "
    "the largest difference from the recurrence: the prefix sum overflows fp32 in long "
    "chunks.",
    cells=tuple(
        _cell(
            f"attention/C{C}-d{D}",
            f"Four forms of the attention at chunks of {C}, heads of {D}.",
            "attention",
            chunk_len=C,
            d_head=D,
        )
        for D in (32, 64)
        for C in (16, 32, 64, 128, 256)
    ),
    charts=(
        Chart(title="Heads of 32", x="C", y="us_per_token", cells="attention/*-d32"),
        Chart(title="Heads of 64", x="C", y="us_per_token", cells="attention/*-d64"),
        Chart(title="Memory, heads of 64", x="C", y="peak_mb", cells="attention/*-d64"),
    ),
)

EXPERTS = Group(
    name="experts",
    text="One layer's experts on 1,024 tokens, forward and backward: each token's weights "
    "gathered, a loop over the experts, and `grouped`, what the engine does: on a CPU a padded "
    "batch of products where the choices are even, else products of segments. "
    "`experts/step` is the whole training step, "
    "an SGD step of 1,024 tokens each.",
    cells=(
        *(
            _cell(
                f"experts/E{E}",
                f"Gather, loop and grouped products of {E} experts.",
                "dispatch",
                n_experts=E,
                tokens=1024,
            )
            for E in (4, 8, 16, 32, 64, 128)
        ),
        _cell(
            "experts/step",
            "The whole training step with 16 to 128 experts.",
            "step",
            n_experts=[16, 32, 64, 128],
            vocabulary=VOCABULARY,
        ),
    ),
    charts=(
        Chart(title="One layer", x="E", y="us_per_token", cells="experts/E*"),
        Chart(
            title="Whole training step",
            x="variant",
            y="us_per_token",
            cells="experts/step",
            kind="bars",
        ),
    ),
)

CROSS_ENTROPY = Group(
    name="cross_entropy",
    text="The head's loss on 1,024 tokens of width 512, forward and backward: all logits at "
    "once, and 256 rows of them at a time, as the text front-end does it.",
    cells=tuple(
        _cell(
            f"cross_entropy/V{V}",
            f"Materialised and fused cross entropy at a vocabulary of {V:,}.",
            "cross_entropy",
            vocabulary=V,
            tokens=1024,
            d_model=512,
        )
        for V in (65, 1024, 8192, 50257)
    ),
    charts=(
        Chart(title="Time", x="V", y="us_per_token"),
        Chart(title="Memory", x="V", y="peak_mb"),
    ),
)


def _options(name: str, summary: str, variants: dict[str, dict[str, Any]], **rest: Any) -> Cell:
    return _cell(
        f"step/{name}", summary, "options", vocabulary=VOCABULARY, variants=variants, **rest
    )


STEP = Group(
    name="step",
    text="The whole training step at d_model 512, 4 blocks, 16 experts (top 2, rank 64, d_ff "
    "512), 8 oscillators; chunks of 32, 8 rows, SGD every 8 chunks, unless said otherwise. "
    "The reference path is the same model, weight for weight, on plain kernels: masked "
    "einsum, weights gathered per token, all logits at once; that both give the same loss "
    "is checked before they are timed.",
    cells=(
        _cell(
            "step/V50257",
            "Against the reference path, at a vocabulary of 50,257.",
            "against_reference",
            vocabulary=50257,
            chunk_len=32,
            reference_chunk_len=32,
            limit=900,
        ),
        _cell(
            "step/V8192",
            "Chunks of 128 against the reference path in chunks of 32, at 8,192.",
            "against_reference",
            vocabulary=VOCABULARY,
            chunk_len=128,
            reference_chunk_len=32,
            limit=900,
        ),
        _options(
            "batch", "Rows side by side.", {f"{B} rows": {"batch_size": B} for B in (1, 2, 4, 8)}
        ),
        _options(
            "chunk",
            "Chunk lengths.",
            {f"chunks of {C}": {"chunk_len": C} for C in (16, 32, 64, 128, 256)},
            limit=600,
        ),
        _options(
            "optimizer",
            "Optimizers, one step for each chunk.",
            {
                name: {"optimizer": name, "accumulation_steps": 1}
                for name in ("sgd", "rmsprop", "adamw", "muon")
            },
        ),
        _options(
            "accumulation",
            "Chunks for each step of AdamW.",
            {
                f"{n} chunks a step": {"optimizer": "adamw", "accumulation_steps": n}
                for n in (1, 2, 4, 8)
            },
        ),
        _options(
            "head",
            "Every position scored, or the last.",
            {h: {"head": h} for h in ("dense", "last")},
        ),
        _options(
            "precision",
            "Precision of the computation.",
            {p: {"precision": p} for p in ("fp32", "bf16")},
        ),
        _cell(
            "step/compiled",
            "Blocks compiled by torch.compile, or not.",
            "compiled",
            vocabulary=VOCABULARY,
            limit=900,
        ),
        _cell(
            "step/dynamics",
            "The default and the reference dynamics.",
            "dynamics",
            vocabulary=VOCABULARY,
        ),
    ),
    charts=(
        Chart(
            title="Against the reference path, V = 50,257",
            x="variant",
            y="us_per_token",
            cells="step/V50257",
            kind="bars",
        ),
        Chart(
            title="Against the reference path, V = 8,192",
            x="variant",
            y="us_per_token",
            cells="step/V8192",
            kind="bars",
        ),
        Chart(title="Rows", x="batch_size", y="us_per_token", cells="step/batch"),
        Chart(title="Chunk length", x="chunk_len", y="us_per_token", cells="step/chunk"),
    ),
)

PROFILE = Group(
    name="profile",
    text="Where the time of one training step goes, at the size of the group `step`, one "
    "optimizer step for each chunk of 8 rows of 32 tokens.",
    cells=tuple(
        _cell(
            f"profile/{optimizer}-V{V}",
            f"Parts of a training step with {optimizer} at a vocabulary of {V:,}.",
            "profile",
            vocabulary=V,
            optimizer=optimizer,
        )
        for optimizer, V in (("sgd", 50257), ("muon", VOCABULARY))
    ),
    charts=tuple(
        Chart(
            title=f"{optimizer}, V = {V:,}",
            x="variant",
            y="percent_of_step",
            cells=f"profile/{optimizer}-V{V}",
            kind="bars",
        )
        for optimizer, V in (("sgd", 50257), ("muon", VOCABULARY))
    ),
)

DECODE = Group(
    name="decode",
    text="One token after the other at the width of stage0 and a vocabulary of 8,192, greedily. "
    "A stream that has read 1,000 and 1,000,000 tokens is timed in turns: the state does not "
    "grow, and neither must the time. `grown MB` is how much memory the process took in between. "
    "The original's loop of ticks made 695 a second on a machine "
    "of this kind.",
    cells=(
        _cell(
            "decode/flat",
            "One stream, after 1,000 and after 1,000,000 tokens.",
            "flatness",
            vocabulary=VOCABULARY,
            places=[1000, 1_000_000],
            limit=2400,
        ),
        _cell(
            "decode/streams",
            "1 to 32 streams side by side.",
            "batches",
            vocabulary=VOCABULARY,
            streams=[1, 2, 4, 8, 16, 32],
            limit=600,
        ),
    ),
    charts=(
        Chart(
            title="Streams side by side",
            x="variant",
            y="tokens_per_second",
            cells="decode/streams",
            kind="bars",
        ),
    ),
)

DATA = Group(
    name="data",
    text="Making data ready and reading it, without an engine. `data/start` opens token shards "
    "that are in the cache already and reads 201 batches; what it touches of the memory map "
    "counts as mapped, and the system may take it back.",
    cells=(
        _cell(
            "data/text",
            "Encoding text, and reading batches of tokens.",
            "text",
            tokenizer="fractus-8k",
            megabytes=4,
            repeats=5,
        ),
        _cell(
            "data/images",
            "Drawing glyphs, and reading batches of a decoded folder.",
            "images",
            count=2000,
        ),
        _cell(
            "data/start",
            "Start and memory on a small and on a large corpus.",
            "start",
            small=1_000_000,
            large=1_000_000_000,
            vocabulary=VOCABULARY,
            repeats=5,
        ),
    ),
)

GPTS: dict[int, list[dict[str, Any]]] = {
    60: [
        {"n_layers": 4, "lr": 1e-3, "schedule": "cosine"},
        {"n_layers": 4, "lr": 4e-3, "schedule": "wsd"},
        {"n_layers": 3, "lr": 4e-3, "schedule": "wsd"},
        {"n_layers": 3, "lr": 4e-3, "schedule": "wsd", "compiled": True},
    ],
    180: [
        {"n_layers": 4, "lr": 4e-3, "schedule": "wsd", "compiled": True},
        {"n_layers": 3, "lr": 4e-3, "schedule": "wsd", "compiled": True},
    ],
}
"""By the seconds that they have: the recipes that do well in it."""

RACE = Group(
    name="race",
    text="Fractus (`fractus run`, as a command) and plain networks, trained one after the other "
    "for the same time on the same data and threads, and scored on the whole held-out "
    "split. The controls use AdamW with betas of 0.9 and 0.99. Where compiled, the compilation "
    "is before the time begins. A loss is per character, Fractus's over the split read as one "
    "stream, or, cold, in streams of 1,024 that begin with an empty state; a GPT's over windows "
    "that overlap by half, which suits it best, or (`loss windows`) that do not overlap.",
    cells=(
        *(
            _cell(
                f"race/chars-{seconds}s",
                f"Tiny Shakespeare in characters, {seconds} seconds, against a plain GPT.",
                "chars",
                seconds=seconds,
                engine=[
                    *("--set", "n_heads=4", "--set", "n_experts=2", "--set", "top_k=1"),
                    *("--set", "expert_rank=0", "--set", "d_ff=256", "--cpu.compile"),
                    *("--cpu.batch_size", "16", "--cpu.chunk_len", "64"),
                    *("--cpu.lr", "0.014", "--cpu.warmup_steps", "40", "--cpu.final_lr", "0.01"),
                    *("--cpu.reset_probability", "0.02"),
                ],
                controls=GPTS[seconds],
                limit=2400,
                repeats=1,
            )
            for seconds in (60, 180)
        ),
        _cell(
            "race/cifar",
            "CIFAR-10, 90 seconds, against a ViT and a CNN of equal size.",
            "cifar",
            seconds=90,
            engine=[
                *("--set", "n_layers=1", "--set", "thought_stride=8"),
                *("--cpu.precision", "bf16", "--cpu.lr", "0.016"),
            ],
            lr={"vit": 1e-3, "cnn": 3e-3},
            limit=1200,
            repeats=1,
        ),
    ),
    charts=(
        Chart(title="Characters, 60 s", x="variant", y="loss", cells="race/chars-60s", kind="bars"),
        Chart(
            title="Characters, 180 s", x="variant", y="loss", cells="race/chars-180s", kind="bars"
        ),
        Chart(title="CIFAR-10", x="variant", y="accuracy", cells="race/cifar", kind="bars"),
    ),
)


_SCALES = {
    "d_model": _cell(
        "scale/d_model",
        "By width.",
        "engine",
        field="d_model",
        values=[64, 128, 192, 256, 384, 512],
    ),
    "n_layers": _cell(
        "scale/layers", "By layers.", "engine", field="n_layers", values=[1, 2, 4, 8, 16]
    ),
    "n_experts": _cell(
        "scale/experts", "By experts.", "engine", field="n_experts", values=[4, 8, 16, 32, 64, 128]
    ),
    "chunk": _cell(
        "scale/chunk", "By chunk length.", "chunk_length", values=[8, 16, 32, 64, 128, 256]
    ),
    "tokens_read": _cell(
        "scale/stream",
        "By what a stream has read.",
        "stream_length",
        values=[128, 1024, 8192, 65536],
    ),
    "corpus_tokens": _cell(
        "scale/corpus",
        "By the size of the corpus.",
        "corpus_size",
        values=[1_000_000, 4_000_000, 16_000_000, 64_000_000, 256_000_000],
    ),
}

SCALE = Group(
    name="scale",
    text="What a token costs in training at the size of stage0, with one quantity changed at a "
    "time. `exponent` is that of the power law through the times: 0 is no growth, 1 is "
    "proportional. `MFLOP per token` is what the products of the model take in training, three "
    "times the forward pass, and the FLOP model is that the time grows as they do; in the "
    "pictures it is drawn through the middle point. Where the time grows otherwise, it goes to "
    "what are no products, or to products of other speeds.",
    cells=tuple(_SCALES.values()),
    charts=tuple(
        Chart(
            title=cell.summary.rstrip("."), x=key, y="us_per_token", cells=cell.name, kind="growth"
        )
        for key, cell in _SCALES.items()
    ),
)

GROWTH = Group(
    name="growth",
    text="stage0 grown to stage1 (`fractus grow`) and trained on, against stage1 from scratch for "
    "as many steps.",
    cells=(
        _cell(
            "growth/chars",
            "Tiny Shakespeare in characters.",
            "chars",
            steps=2000,
            further=800,
            every=100,
            small="stage0",
            large="stage1",
            options=["--cpu.batch_size", "16", "--cpu.chunk_len", "64", "--eval-tokens", "16384"],
            limit=1800,
            repeats=1,
        ),
    ),
    charts=(Chart(title="After growth", x="step", y="loss"),),
)

GPU1B = Group(
    name="gpu1b",
    text="The trainer `gpu1b` where there is no GPU. `estimated_gb` is what its preflight says of "
    "the tensors of a step, `peak_gb` the most that the whole process had. Blocks that learn in "
    "turn (`--gpu1b.pgsu`) save weight gradients and the optimizer's work.",
    cells=(
        _cell(
            "gpu1b/step",
            "One real step of the full 1b from the command line: memory.",
            "step",
            preset="1b",
            vocabulary="gpt2",
            options=[
                *("--gpu1b.optimizer", "sgd", "--gpu1b.precision", "bf16"),
                *("--gpu1b.chunk_len", "32", "--gpu1b.batch_size", "1"),
            ],
            limit=1200,
            repeats=1,
        ),
        _cell(
            "gpu1b/turns",
            "Steps of stage1 in which one, two or all of four blocks learn.",
            "turns",
            preset="stage1",
            vocabulary=VOCABULARY,
            active=[0, 2, 1],
        ),
    ),
)

GROUPS = (
    ATTENTION,
    EXPERTS,
    CROSS_ENTROPY,
    STEP,
    PROFILE,
    DECODE,
    DATA,
    RACE,
    GROWTH,
    SCALE,
    GPU1B,
)
"""In the order of the report."""
