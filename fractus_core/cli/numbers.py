"""Numbers that options take."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import click


class Count(click.ParamType[int]):
    """A whole number from 1 on, also as `200k` or `1.5M`."""

    name = "count"
    _factors = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9}  # noqa: RUF012

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([kMG]?)", str(value))
        number = Decimal(match[1]) * self._factors[match[2]] if match else Decimal(0)
        if number < 1 or number % 1:
            self.fail(
                f"{value!r} is not a whole number from 1 on, as 500, 200k or 1.5M", param, ctx
            )
        return int(number)


def finite(ctx: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """A callback that refuses nan, which is in every range, and infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        raise click.BadParameter(f"{value} is not a finite number", ctx, parameter)
    return value
