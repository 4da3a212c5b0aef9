"""The one exception that users see, and how any exception is said in one line."""

from __future__ import annotations

from textwrap import shorten


class FractusError(Exception):
    """What a user can cause and mend.

    The message is one line that says what was wrong, with the values, and what to do. The command
    line prints it to stderr and exits with 1.
    """


class LostError(FractusError):
    """Another process of the same run is gone."""


class ToldError(FractusError):
    """Another process of the same run says it: here nothing is printed."""


def describe(error: BaseException) -> str:
    """Any error as one line: its type and its message; of ours, the message alone."""
    message = shorten(str(error), width=500, placeholder=" ...")
    if isinstance(error, FractusError):
        return message
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
