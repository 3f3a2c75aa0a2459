"""Numbers as text for people to read."""

from __future__ import annotations

import math


def number(value: float | None, beside: float | None = None) -> str:
    """Return a number as short, readable text; None and NaN give `nan`.

    beside: a number shown next to it, which decides the digits.
    """
    if value is None or math.isnan(value):
        return "nan"
    size = abs(value if beside is None or not math.isfinite(beside) else beside)
    if value == 0 or (1e-3 <= abs(value) < 1e5 or 1e-3 <= size < 1e5):
        return f"{value:.{1 if size >= 1000 else 4}f}"
    return f"{value:.3g}"


def spread(mean: float | None, deviation: float | None, beside: float | None = None) -> str:
    """Return a mean and its deviation, as in `0.9600 ± 0.0100`; the mean alone where there is no finite, non-zero
    deviation. beside: a number shown next to them, which decides the digits."""
    like = mean if beside is None else beside
    return number(mean, like) + (f" ± {number(deviation, like)}" if deviation and math.isfinite(deviation) else "")


def in_bytes(size: float) -> str:
    """Return a number of bytes as text in decimal units, as in `3.8 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
