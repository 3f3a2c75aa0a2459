"""Mark parameters of tests as slow."""

from collections.abc import Iterable

import pytest


def slow_after(count: int, values: Iterable[object]) -> list[object]:
    """The values of a parametrized test, of which the first `count` are quick."""
    return [value if i < count else pytest.param(value, marks=pytest.mark.slow) for i, value in enumerate(values)]
