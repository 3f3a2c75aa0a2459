"""Fields of options: a default, what the field takes, and what it means."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
Several = Any
"""The type of a setting that may be of several types, as a number or a word; its range says which, since OmegaConf has
no such types."""


class FieldError(ValueError):
    """One field of an option is wrong: what it got and what it takes."""

    def __init__(self, name: str, got: object, takes: str) -> None:
        super().__init__(f"{name}={got}: expected {takes}")


def ranged(
    default: T, takes: str, test: Callable[[Several], bool], meaning: str, *, null: str | None = None, **more: object
) -> T:
    """A field with any range, of which the other fields are special cases.

    takes: the range in words, and test: in code. null: what null stands for, where it is taken. more: further metadata,
    as `settle`: the function of the option and the config that gives the value in place of null or `auto`.
    """
    metadata = {"takes": takes, "test": test, "meaning": meaning, **more}
    if null is not None:
        metadata |= {"takes": f"{takes}, or null for {null}", "test": lambda value: value is None or test(value)}
    if isinstance(default, (list, dict)):
        return dataclasses.field(default_factory=partial(copy, default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


MOST_POINTS = 10_000_000
MOST_REPEATS = 10_000
_MOST = 10**9
"""Larger numbers are slips, which would show only when memory or time had run out."""

_COMPARISONS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}


def number(default: T, takes: str, meaning: str, *, null: str | None = None, **more: object) -> T:
    """A field of a finite number. takes: its range, as `> 0`, `>= 0 and < 1` or `whole >= 1`; nothing for any. null and
    more: as for `ranged`."""
    is_whole, limits = takes.startswith("whole"), takes.removeprefix("whole").strip()
    tests = []
    for limit in limits.split(" and ") if limits else []:
        sign, bound = limit.split()
        tests.append((_COMPARISONS[sign], float(bound)))
    if is_whole and len(tests) == 1 and tests[0][1] >= 1:  # a count of what is made
        tests.append((operator.le, _MOST))

    def test(value: float) -> bool:
        is_good = -math.inf < value < math.inf and all(compare(value, bound) for compare, bound in tests)
        return is_good and not (is_whole and value % 1)

    return ranged(
        default, f"a {'whole ' if is_whole else ''}number {limits}".rstrip(), test, meaning, null=null, **more
    )


def parameter(default: T, low: float, high: float, meaning: str, takes: str = "> 0", *, null: str | None = None) -> T:
    """A kernel's parameter that an optimizer moves within [low, high]. takes: `> 0`, `>= 0`, or nothing. null: what
    null stands for, where it is taken."""
    kind = {"may_be_zero": takes == ">= 0", "signed": takes == ""}
    return number(default, takes, meaning, null=null, bounds=(low, high), **kind)


def word(
    known: str | Iterable[str], meaning: str, *, default: str | None = None, null: str | None = None, **more: object
) -> str:
    """A field of one word out of the known ones, in a text as `raw | log` or listed. The default is the first, or null
    where `null` says what that stands for."""
    choices = tuple(known.split(" | ") if isinstance(known, str) else known)
    usual = default or (choices[0] if null is None else None)
    takes = f"one of {', '.join(choices)}"
    return ranged(usual, takes, lambda v: v in choices, meaning, null=null, choices=choices, **more)  # type: ignore[return-value]


def words(default: T, known: Sequence[str], meaning: str, *, null: str | None = None, **more: object) -> T:
    """A field of a list of words out of the known ones."""
    return ranged(
        default, f"a list out of {', '.join(known)}", lambda v: set(v) <= set(known), meaning, null=null, **more
    )


def flag(default: T, meaning: str, *, null: str | None = None, **more: object) -> T:
    return ranged(default, "true or false", lambda v: isinstance(v, bool), meaning, null=null, **more)


def rising(default: T, meaning: str, *, null: str | None = None, lowest: float = -math.inf) -> T:
    """Two rising numbers."""
    takes = "two rising numbers" + (f" >= {lowest:g}" if math.isfinite(lowest) else "")
    return ranged(default, takes, lambda v: len(v) == 2 and lowest <= v[0] < v[1] < math.inf, meaning, null=null)


def sizes(null: str, meaning: str) -> list[int] | None:
    """Different numbers of points; `null` says what null stands for."""
    takes = "a list of different whole numbers >= 1"
    return ranged(None, takes, lambda v: 0 < len(v) == len(set(v)) and all(n >= 1 for n in v), meaning, null=null)


def cutoff() -> float | None:
    """The field of a pseudo-inverse's relative cut-off."""
    meaning = "with solver=lstsq: singular values below rcond times the largest are dropped"
    return number(None, "> 0 and < 1", meaning, null="none, as all solvers but lstsq need")


def is_window(value: object) -> bool:
    """Whether a value is [first, last] with 1 ≤ first ≤ last."""
    if not isinstance(value, list) or len(value) != 2 or not all(type(each) is int for each in value):
        return False
    return 1 <= value[0] <= value[1]


def nested(default: T, takes: str, convert: Callable[[str, Several], object], meaning: str) -> T:
    """A field that holds options: `convert(path, value)` makes them of what the config has."""
    return ranged(default, takes, lambda v: True, meaning, convert=convert)
