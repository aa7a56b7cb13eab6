"""Checks of arguments that parts of the API share; each names the argument and its value."""

from __future__ import annotations

import dataclasses
import operator
from typing import Any

from jax_fabric.errors import InvalidArgument

LONGEST_TIMEOUT_S = 1e9
MAX_I32 = 2**31 - 1
#: Threads of one engine.
MOST_WORKERS = 1024
MAX_U32 = 2**32 - 1
MAX_U64 = 2**64 - 1


def integer(name: str, value: Any, least: int = 0, most: int = MAX_U64) -> int:
    """A whole number within bounds.

    Raises:
      InvalidArgument: it is not.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise InvalidArgument(f"{name}={value!r}: must be a whole number from {least} to {most}")
    return number


def seconds(name: str, value: Any, *, above_zero: bool = False) -> float:
    """A time span in seconds, up to LONGEST_TIMEOUT_S.

    Raises:
      InvalidArgument: it is not.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= LONGEST_TIMEOUT_S or (above_zero and number == 0):
        least = "above 0" if above_zero else "at least 0"
        raise InvalidArgument(
            f"{name}={value!r}: must be {least} and at most {LONGEST_TIMEOUT_S:g} seconds"
        )
    return number


def microseconds(seconds_value: float) -> int:
    """The same span for the extension module."""
    return int(seconds_value * 1e6)


def instance(name: str, value: Any, kind: type) -> None:
    """Checks a type.

    Raises:
      InvalidArgument: the value is of another one.
    """
    if not isinstance(value, kind):
        raise InvalidArgument(
            f"{name}={value!r}: must be a {kind.__module__}.{kind.__qualname__}, not "
            f"{type(value).__qualname__}"
        )


def function(name: str, value: Any) -> None:
    """Checks that a callback can be called.

    Raises:
      InvalidArgument: it cannot.
    """
    if not callable(value):
        raise InvalidArgument(f"{name}={value!r}: must be a function")


def text(name: str, value: Any) -> str:
    """Checks a name.

    Raises:
      InvalidArgument: it is not a string, or empty.
    """
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{name}={value!r}: must be a string that is not empty")
    return value


def byte_string(name: str, value: Any) -> bytes:
    """The bytes of anything with the buffer protocol.

    Raises:
      InvalidArgument: it has none.
    """
    if isinstance(value, bytes):
        return value
    try:
        return bytes(memoryview(value))
    except (TypeError, BufferError, ValueError) as error:
        raise InvalidArgument(
            f"{name}: {type(value).__qualname__} is not bytes-like: {error}"
        ) from None


def check_whole_numbers(config: Any) -> None:
    """Every whole number of a configuration is at least 1, and its seed at least 0.

    Raises:
      ValueError: names the field, its value and the least.
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        least = 0 if field.name == "seed" else 1
        if type(value) is int and value < least:
            raise ValueError(f"{field.name} is {value}; it must be {least} or more")
