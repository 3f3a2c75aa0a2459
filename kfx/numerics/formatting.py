"""Numbers as a person reads them."""

from __future__ import annotations

import math


def number(value: float | None, beside: float | None = None) -> str:
    """A number as short as it stays readable, whatever its size; with as many digits as one that it stands beside."""
    if value is None or math.isnan(value):
        return "nan"
    size = abs(value if beside is None or not math.isfinite(beside) else beside)
    if value == 0 or (1e-3 <= abs(value) < 1e5 or 1e-3 <= size < 1e5):
        return f"{value:.{1 if size >= 1000 else 4}f}"
    return f"{value:.3g}"


def spread(mean: float | None, deviation: float | None, beside: float | None = None) -> str:
    """0.9600 ± 0.0100, with as many digits as a number that it stands beside; without a deviation that is none."""
    like = mean if beside is None else beside
    return number(mean, like) + (f" ± {number(deviation, like)}" if deviation and math.isfinite(deviation) else "")


def in_bytes(size: float) -> str:
    """3.8 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
