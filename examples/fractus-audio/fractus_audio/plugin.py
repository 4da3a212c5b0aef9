"""What this package adds to Fractus. Light: it imports no torch."""

from __future__ import annotations

from fractus_core.api import CommandSpec, FrontendSpec, Option, hookimpl


@hookimpl
def fractus_frontends() -> list[FrontendSpec]:
    return [
        FrontendSpec(
            name="audio",
            api=1,
            summary="Spoken words or sounds from wav files: names their class.",
            target="fractus_audio.frontend:AudioFrontend",
            emits="audio",
            metrics={"accuracy": "higher"},
            uses=("fractus listen {run} WAV",),
            options=(
                Option(
                    name="sample_rate",
                    default=8000,
                    minimum=1000,
                    maximum=192_000,
                    help="Samples a second that every clip is resampled to.",
                ),
                Option(
                    name="seconds",
                    default=1.0,
                    minimum=0.1,
                    maximum=60.0,
                    help="Length that every clip is padded or cropped to, around its middle.",
                ),
                Option(
                    name="mels", default=40, minimum=8, maximum=128, help="Bands of the spectrum."
                ),
                Option(
                    name="batch_size",
                    default=64,
                    minimum=0,
                    help="Clips read side by side; 0 is the trainer's batch size.",
                ),
                Option(
                    name="augment",
                    default=True,
                    help="Move, stretch, mask and disturb training clips, anew in each epoch.",
                ),
                Option(
                    name="validation",
                    default=0.1,
                    minimum=0.01,
                    maximum=0.5,
                    help="The share of clips kept out of training, in data that has no splits.",
                ),
            ),
        )
    ]


@hookimpl
def fractus_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="listen",
            api=1,
            summary="Name the class of wav files with a trained engine.",
            target="fractus_audio.listen:listen",
        )
    ]
