"""Compare a page with what its script gives."""

import re

import pytest

_NUMBER = re.compile(r"(?<![\w.])(\d+\.\d+|\d+)")


def assert_same_page(page: str, given: str) -> None:
    """The texts are equal but for the last digit of numbers, which other versions of NumPy may round otherwise."""
    words, numbers = _parted(page)
    other_words, others = _parted(given)
    assert words == other_words
    for number, other in zip(numbers, others, strict=True):
        digit = 10.0 ** -len(number.partition(".")[2])
        assert float(number) == pytest.approx(float(other), rel=0, abs=1.01 * digit if "." in number else 0), number


def _parted(text: str) -> tuple[list[str], list[str]]:
    parts = _NUMBER.split(text)
    return parts[::2], parts[1::2]
