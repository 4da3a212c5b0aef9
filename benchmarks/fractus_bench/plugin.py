"""What the benchmarks add to Fractus."""

from __future__ import annotations

from fractus_core.api import CommandSpec, hookimpl


@hookimpl
def fractus_commands() -> list[CommandSpec]:
    return [
        CommandSpec(
            name="bench",
            summary="Measure speed, one cell at a time, and report.",
            target="fractus_bench.commands:bench",
        )
    ]
