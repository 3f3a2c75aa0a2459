"""Fields of options: a default, allowed values, and a meaning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any


class FieldError(ValueError):
    """A field of an option has a wrong value; holds the value and the allowed values."""

    def __init__(self, name: str, got: Any, takes: str) -> None:
        super().__init__(f"{name}={got}: expected {takes}")


def ranged(default: Any, takes: str, test: Callable[[Any], bool], meaning: str, **more: Any) -> Any:
    """A field with any range: `takes` in words, `test` in code. All other kinds of fields are built on this one."""
    metadata = {"takes": takes, "test": test, "meaning": meaning, **more}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=lambda: default.copy(), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


MOST_POINTS = 10_000_000
MOST_REPEATS = 10_000
"""Larger numbers are typing errors, which would show only when memory or time had run out."""


def positive(default: float, meaning: str) -> Any:
    return ranged(default, "a number > 0", lambda v: math.isfinite(v) and v > 0, meaning)


def not_negative(default: float, meaning: str) -> Any:
    return ranged(default, "a number >= 0", lambda v: math.isfinite(v) and v >= 0, meaning)


def between(default: float, low: float, high: float, meaning: str) -> Any:
    return ranged(default, f"a number > {low} and < {high}", lambda v: low < v < high, meaning)


def from_to(default: float, low: float, high: float, meaning: str) -> Any:
    return ranged(default, f"a number >= {low} and < {high}", lambda v: low <= v < high, meaning)


def count(default: int, least: int, meaning: str, most: int = 10**9) -> Any:
    takes = f"a whole number >= {least}" + (f" and <= {most}" if most < 10**9 else "")
    return ranged(default, takes, lambda v: least <= v <= most, meaning)


def whole(default: int, meaning: str) -> Any:
    return ranged(default, "a whole number >= 0", lambda v: v >= 0, meaning)


def count_or_null(default: int | None, least: int, null: str, meaning: str) -> Any:
    """A whole number >= least, or null. null: what null means, in words."""
    takes = f"a whole number >= {least}, or null for {null}"
    return ranged(default, takes, lambda v: v is None or least <= v <= 10**9, meaning)


def one_of(default: str, *choices: str, meaning: str) -> Any:
    return ranged(default, f"one of {', '.join(choices)}", lambda v: v in choices, meaning, choices=choices)


def some_of(default: list[str], *choices: str, meaning: str) -> Any:
    return ranged(default, f"a list out of {', '.join(choices)}", lambda v: all(item in choices for item in v), meaning)


def flag(default: bool, meaning: str) -> Any:
    return ranged(default, "true or false", lambda v: isinstance(v, bool), meaning)


def rising(default: list[float] | None, meaning: str, *, null: str | None = None, lowest: float = -math.inf) -> Any:
    """Two rising numbers. null: what null means, in words, if null is allowed."""

    def test(pair: Any) -> bool:
        return (pair is None and null is not None) or (len(pair) == 2 and lowest <= pair[0] < pair[1] < math.inf)

    takes = "two rising numbers" + (f" >= {lowest:g}" if math.isfinite(lowest) else "")
    return ranged(default, takes + (f", or null for {null}" if null else ""), test, meaning)


def parameter(default: float, low: float, high: float, meaning: str) -> Any:
    """A kernel's parameter > 0, which optimizers move within [low, high]."""
    metadata = {"bounds": (low, high)}

    def test(value: float) -> bool:
        return math.isfinite(value) and value > 0

    return ranged(default, "a number > 0", test, meaning, **metadata)


def variance(default: float, low: float, high: float, meaning: str) -> Any:
    """A kernel's parameter >= 0, which optimizers move within [low, high]."""
    return ranged(
        default, "a number >= 0", lambda v: math.isfinite(v) and v >= 0, meaning, bounds=(low, high), may_be_zero=True
    )


def signed_parameter(default: float, low: float, high: float, meaning: str) -> Any:
    """A kernel's parameter of any sign, which optimizers move within [low, high]."""
    return ranged(default, "a number", math.isfinite, meaning, bounds=(low, high), signed=True)


def is_window(value: Any) -> bool:
    """Whether a value is [first, last] with 1 ≤ first ≤ last."""
    numbers = isinstance(value, list) and all(type(each) is int for each in value)
    return numbers and len(value) == 2 and 1 <= value[0] <= value[1]


def nested(default: Any, takes: str, convert: Callable[[str, Any], Any], meaning: str) -> Any:
    """A field that holds options; `convert(path, value)` makes them from the config's value."""
    return ranged(default, takes, lambda v: True, meaning, convert=convert)
