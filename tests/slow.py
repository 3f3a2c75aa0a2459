"""Mark parameters of tests as slow: they run in `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_after(count: int, values: Iterable[object]) -> list[object]:
    """The values of a parametrized test, of which the first `count` are quick."""
    return [value if i < count else slow(value) for i, value in enumerate(values)]


def one_in(count: int, values: Iterable[object]) -> list[object]:
    """The values of a parametrized test, of which one in `count` is quick."""
    return [slow(value) if i % count else value for i, value in enumerate(values)]


def slow(value: Any) -> object:
    return pytest.param(*(value if isinstance(value, tuple) else [value]), marks=pytest.mark.slow)
