"""What the vision plugin adds to Fractus."""

from __future__ import annotations

from fractus_core.api import CommandSpec, FrontendSpec, Option, hookimpl


@hookimpl
def fractus_frontends() -> list[FrontendSpec]:
    return [
        FrontendSpec(
            name="vision",
            summary="Images as patches: names their class.",
            target="fractus_vision.frontend:VisionFrontend",
            extras=("vision",),
            emits="images",
            default_data="glyphs",
            metrics={"accuracy": "higher"},
            uses=("fractus classify {run} IMAGE --watch",),
            options=(
                Option(
                    name="stem",
                    default="conv",
                    choices=("conv", "patch"),
                    help="How pixels become vectors: convolutions that end in a grid of 4 x 4, "
                    "or plain patches.",
                ),
                Option(
                    name="patch_size",
                    default=4,
                    minimum=1,
                    help="Pixels along the side of a patch, for the stem 'patch'.",
                ),
                Option(
                    name="scan",
                    default="raster",
                    choices=("raster", "snake", "hilbert", "centre-out"),
                    help="The order in which the eye reads the grid.",
                ),
                Option(
                    name="answer",
                    default="pooled",
                    choices=("pooled", "every"),
                    help="Train the answer to the whole image, or the answer after every patch.",
                ),
                Option(
                    name="size",
                    default=32,
                    minimum=16,
                    maximum=1024,
                    help="Pixels along the side that every image is resized and cropped to.",
                ),
                Option(
                    name="colour",
                    default=True,
                    help="Read colour, or grey only; images are converted.",
                ),
                Option(
                    name="batch_size",
                    default=128,
                    minimum=0,
                    help="Images read side by side; 0 is the trainer's batch size.",
                ),
                Option(
                    name="mirror",
                    default=True,
                    help="Mirror every other training image; never glyphs.",
                ),
                Option(
                    name="shift",
                    default=2,
                    minimum=0,
                    help="Move training images by up to so many pixels; never glyphs.",
                ),
                Option(
                    name="validation",
                    default=0.1,
                    minimum=0.001,
                    maximum=0.5,
                    help="The share of images kept out of training, in data that has no splits.",
                ),
                Option(
                    name="image_column",
                    default="",
                    help="The column that holds the images; empty: the first that can.",
                ),
                Option(
                    name="label_column",
                    default="label",
                    help="The column that holds the class, as a number or a name.",
                ),
                Option(
                    name="on_invalid",
                    default="skip",
                    choices=("skip", "refuse"),
                    help="What to do with images and labels that cannot be used.",
                ),
            ),
        )
    ]


@hookimpl
def fractus_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="classify",
            summary="Name the class of images with a trained engine.",
            target="fractus_vision.classify:classify",
            extras=("vision",),
        )
    ]
