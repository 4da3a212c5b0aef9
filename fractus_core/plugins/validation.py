"""What makes a spec unusable, said in words for the plugin's author."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from fractus_core.engine.presets import PRESETS
from fractus_core.plugins.specs import API_VERSION, FrontendSpec, Option, Spec, TrainerSpec

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_OPTION_NAME = re.compile(r"[a-z][a-z0-9_]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def faults(spec: Spec) -> Iterator[str]:
    """Yields what is wrong with `spec`; nothing if it can be used."""
    if spec.api != API_VERSION:
        yield (
            f"it asks for plugin API {spec.api!r}; this Fractus speaks {API_VERSION}; "
            "upgrade fractus or the plugin"
        )
        return  # another version's fields may mean other things
    if not _matches(_NAME, spec.name):
        yield f"name {spec.name!r} does not match {_NAME.pattern}"
    if not _matches(_TARGET, spec.target):
        yield f"target {spec.target!r} is not 'module:attribute'"
    if not isinstance(spec.summary, str) or len(spec.summary.splitlines()) != 1:
        yield f"summary {spec.summary!r} is not one line of text"
    yield from _not_strings("extras", spec.extras)
    if isinstance(spec, FrontendSpec):
        yield from _frontend_faults(spec)
    elif isinstance(spec, TrainerSpec):
        yield from _not_strings("accepts", spec.accepts)
        yield from _not_strings("devices", spec.devices)
        if spec.preset and spec.preset not in PRESETS:
            yield f"preset {spec.preset!r} is not one of {', '.join(PRESETS)}"
        yield from _options_faults(spec.options)


def _frontend_faults(spec: FrontendSpec) -> Iterator[str]:
    if not isinstance(spec.emits, str) or not spec.emits:
        yield f"emits {spec.emits!r} is not the name of a kind of observation"
    if not isinstance(spec.default_data, str):
        yield f"default_data {spec.default_data!r} is not a string"
    if not isinstance(spec.metrics, Mapping):
        yield f"metrics {spec.metrics!r} is not a mapping"
    else:
        for name, direction in spec.metrics.items():
            if not isinstance(name, str) or direction not in ("lower", "higher"):
                yield f"metric {name!r} is {direction!r}, not 'lower' or 'higher'"
    yield from _options_faults(spec.options)


def _options_faults(options: object) -> Iterator[str]:
    if not isinstance(options, tuple) or not all(isinstance(item, Option) for item in options):
        yield f"options {options!r} is not a tuple of Option"
        return
    names = [option.name for option in options]
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield f"option {name!r} is there twice"
    for option in options:
        for fault in _option_faults(option):
            yield f"option {option.name!r}: {fault}"


def _option_faults(option: Option) -> Iterator[str]:
    if not _matches(_OPTION_NAME, option.name):
        yield f"its name does not match {_OPTION_NAME.pattern}"
    if not isinstance(option.help, str):
        yield f"help {option.help!r} is not a string"
    yield from _not_strings("choices", option.choices)

    default = option.default
    bounds = {"minimum": option.minimum, "maximum": option.maximum}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    if not isinstance(default, bool | int | float | str):
        yield f"default {default!r} is not a bool, int, float or str"
    elif isinstance(default, bool | str):
        if given:
            yield f"a {type(default).__name__} has no {' and no '.join(given)}"
        if option.choices and default not in option.choices:
            yield f"default {default!r} is not one of its choices {option.choices!r}"
    else:
        if option.choices:
            yield f"choices are for strings, its default is {default!r}"
        numbers = {"default": default, **given}
        unfit = {name: number for name, number in numbers.items() if not _is_finite(number)}
        for name, number in unfit.items():
            yield f"{name} {number!r} is not a finite number"
        if not unfit:
            low, high = given.get("minimum", -math.inf), given.get("maximum", math.inf)
            if not low <= default <= high:
                yield f"default {default!r} is not within {low!r}..{high!r}"


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _not_strings(field: str, value: object) -> Iterator[str]:
    if not isinstance(value, tuple) or not all(isinstance(item, str) for item in value):
        yield f"{field} {value!r} is not a tuple of strings"
