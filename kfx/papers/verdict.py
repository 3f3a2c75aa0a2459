"""Compare a measured number with a published one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

import numpy as np


class Verdict(StrEnum):
    """The verdict on a published number. The first five rank from the best to the worst agreement."""

    REPRODUCED = "reproduced"
    CLOSE = "within 2 %"
    NOISY = "too noisy"
    DIRECTION = "same direction"
    DIFFERS = "differs"
    STALE = "stale"
    NOT_RUN = "not run"
    NONE = "no verdict"


_SEEDS = 3
_FAR, _CLOSE = 0.1, 0.02


def verdict(
    published: str | None,
    measured: Sequence[float],
    deviation: float | None = None,
    *,
    runs: int = 1,
    is_yes_or_no: bool = False,
    is_accuracy: bool = False,
    before: tuple[float, Sequence[float]] | None = None,
) -> Verdict:
    """Return the verdict by the rule of the page (`templates/rules.md`).

    published: as the paper has it, None for a curve. measured: one value for each seed. deviation: the published
    standard deviation of one run. runs: of which the published number is the mean. is_yes_or_no: each measurement is 1
    or 0. is_accuracy: the numbers are accuracies, in shares; they are compared as errors. before: the published and the
    measured values of the untrained kernel.
    """
    if not measured:
        return Verdict.NOT_RUN
    if published is None:
        return Verdict.NONE
    if is_accuracy:
        published, measured = str(1 - Decimal(published)), [1 - value for value in measured]
        before = None if before is None else (1 - before[0], [1 - value for value in before[1]])
    number, mean = float(published), float(np.mean(measured))
    if is_yes_or_no:
        agree = [value == number for value in measured]
        return Verdict.REPRODUCED if all(agree) else Verdict.NOISY if any(agree) else Verdict.DIFFERS
    gap = abs(mean - number) * (1 - 1e-9)
    spread = float(np.std(measured, ddof=1)) if len(measured) >= _SEEDS else deviation or 0.0
    within_errors = gap <= 2 * spread * math.sqrt(1 / runs + 1 / len(measured))
    if gap <= half_a_digit(published) or (within_errors and gap <= max(_FAR * abs(number), deviation or 0.0)):
        return Verdict.REPRODUCED
    if gap <= _CLOSE * abs(number):
        return Verdict.CLOSE
    if within_errors:
        return Verdict.NOISY
    if before is not None and len(before[1]) and (number - before[0]) * (mean - float(np.mean(before[1]))) > 0:
        return Verdict.DIRECTION
    return Verdict.DIFFERS


def half_a_digit(published: str) -> float:
    """Half a unit of the last published digit: numbers within it round to the published one."""
    exponent = Decimal(published).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent


RANKED = (Verdict.REPRODUCED, Verdict.CLOSE, Verdict.DIRECTION, Verdict.NOISY, Verdict.DIFFERS)
"""Verdicts on measured numbers, the best agreement first."""
AGREE = RANKED[:2]
"""Verdicts of a number that agrees with the printed one."""
