"""Fields of options: a default, what the field takes, and what it means."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class FieldError(ValueError):
    """One field of an option is wrong: what it got and what it takes."""

    def __init__(self, name: str, got: object, takes: str) -> None:
        super().__init__(f"{name}={got}: expected {takes}")


def ranged(default: T, takes: str, test: Callable[[Any], bool], meaning: str, **more: object) -> T:
    """A field with any range: `takes` in words, `test` in code. The other fields are special cases of this."""
    metadata = {"takes": takes, "test": test, "meaning": meaning, **more}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=partial(copy, default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


MOST_POINTS = 10_000_000
MOST_REPEATS = 10_000
_MOST = 10**9
"""Larger numbers are slips, which would show only when memory or time had run out."""

_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def number(default: T, takes: str, meaning: str, *, null: str | None = None, **more: object) -> T:
    """A field of a finite number.

    takes: its range, as `> 0`, `>= 0 and < 1` or `whole >= 1`; nothing for any. null: what null stands for, where it is
    taken. more: what else the field's metadata say.
    """
    is_whole, limits = takes.startswith("whole"), takes.removeprefix("whole").strip()
    tests = []
    for limit in limits.split(" and ") if limits else []:
        sign, bound = limit.split()
        tests.append((_COMPARISONS[sign], float(bound)))
    if is_whole and len(tests) == 1 and tests[0][1] >= 1:  # a count of what is made
        tests.append((operator.le, _MOST))

    def test(value: Any) -> bool:
        if value is None:
            return null is not None
        is_good = -math.inf < value < math.inf and all(compare(value, bound) for compare, bound in tests)
        return is_good and not (is_whole and value % 1)

    words = f"a {'whole ' if is_whole else ''}number {limits}".rstrip() + (f", or null for {null}" if null else "")
    return ranged(default, words, test, meaning, **more)


def parameter(default: T, low: float, high: float, meaning: str, takes: str = "> 0", *, null: str | None = None) -> T:
    """A kernel's parameter that an optimizer moves within [low, high]. takes: `> 0`, `>= 0`, or nothing. null: what
    null stands for, where it is taken."""
    kind = {"may_be_zero": takes == ">= 0", "signed": takes == ""}
    return number(default, takes, meaning, null=null, bounds=(low, high), **kind)


def one_of(default: str, *choices: str, meaning: str) -> str:
    return ranged(default, f"one of {', '.join(choices)}", lambda v: v in choices, meaning, choices=choices)


def some_of(default: list[str], *choices: str, meaning: str) -> list[str]:
    return ranged(default, f"a list out of {', '.join(choices)}", lambda v: all(item in choices for item in v), meaning)


def flag(default: bool, meaning: str) -> bool:
    return ranged(default, "true or false", lambda v: isinstance(v, bool), meaning)


def rising(default: T, meaning: str, *, null: str | None = None, lowest: float = -math.inf) -> T:
    """Two rising numbers; `null` says what null stands for, where it is taken."""

    def test(pair: Any) -> bool:
        return (pair is None and null is not None) or (len(pair) == 2 and lowest <= pair[0] < pair[1] < math.inf)

    takes = "two rising numbers" + (f" >= {lowest:g}" if math.isfinite(lowest) else "")
    return ranged(default, takes + (f", or null for {null}" if null else ""), test, meaning)


def sizes(null: str, meaning: str) -> list[int] | None:
    """Different numbers of points; `null` says what null stands for."""

    def test(value: list[int] | None) -> bool:
        return value is None or (0 < len(value) == len(set(value)) and all(n >= 1 for n in value))

    return ranged(None, f"a list of different whole numbers >= 1, or null for {null}", test, meaning)


def is_window(value: object) -> bool:
    """Whether a value is [first, last] with 1 ≤ first ≤ last."""
    if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int for each in value):
        return False
    return 1 <= value[0] <= value[1]


def nested(default: Any, takes: str, convert: Callable[[str, Any], object], meaning: str) -> Any:
    """A field that holds options: `convert(path, value)` makes them of what the config has."""
    return ranged(default, takes, lambda v: True, meaning, convert=convert)
