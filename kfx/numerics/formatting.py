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
    """Return a mean and its deviation, rounded to two digits of the deviation, as in `0.960 ± 0.010`; the mean alone
    where there is no finite, non-zero deviation. beside: a number shown next to a mean alone, which decides its
    digits."""
    if not deviation or not math.isfinite(deviation) or mean is None or not math.isfinite(mean):
        return number(mean, mean if beside is None else beside)
    exponent = int(f"{deviation:.1e}".partition("e")[2])  # of the deviation as it is shown
    largest = max(abs(mean), deviation)
    if deviation < 1e-6 * abs(mean):
        return f"{number(mean)} ± {deviation:.1e}"
    if 1e-3 <= largest < 1e5:
        decimals = max(1 - exponent, 0)
        return f"{mean:.{decimals}f} ± {deviation:.{decimals}f}"
    digits = max(int(f"{mean:e}".partition("e")[2]) + 1 - exponent, 0)
    return f"{mean:.{digits}e} ± {deviation:.1e}" if mean else f"0 ± {deviation:.1e}"


def in_bytes(size: float) -> str:
    """Return a number of bytes as text in decimal units, as in `3.8 MB`."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
