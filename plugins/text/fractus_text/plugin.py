"""What the text plugin adds to Fractus."""

from __future__ import annotations

from fractus_core.api import CommandSpec, FrontendSpec, Option, hookimpl


@hookimpl
def fractus_frontends() -> list[FrontendSpec]:
    return [
        FrontendSpec(
            name="text",
            summary="Text as tokens: predicts the next one.",
            target="fractus_text.frontend:TextFrontend",
            emits="tokens",
            default_data="python-docs",
            metrics={"bits_per_byte": "lower"},
            uses=("fractus generate {run}",),
            options=(
                Option(
                    name="tokenizer",
                    default="fractus-8k",
                    help="A tokenizer's name, or the file of one made by 'fractus tokenizer'.",
                ),
                Option(
                    name="column",
                    default="text",
                    help="The column or key that holds the text, in data that has several.",
                ),
                Option(
                    name="validation",
                    default=0.1,
                    minimum=0.001,
                    maximum=0.5,
                    help="The share of documents that is kept out of training.",
                ),
                Option(
                    name="on_invalid",
                    default="replace",
                    choices=("replace", "refuse"),
                    help="What to do with bytes that are not UTF-8.",
                ),
            ),
        )
    ]


@hookimpl
def fractus_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="tokenizer",
            summary="Make tokenizers for text.",
            target="fractus_text.commands:tokenizer",
        ),
        CommandSpec(
            name="generate",
            summary="Write text with a trained engine.",
            target="fractus_text.generate:generate",
        ),
        CommandSpec(
            name="retokenize",
            summary="Go on with a trained run and another tokenizer.",
            target="fractus_text.retokenize:retokenize",
        ),
    ]
