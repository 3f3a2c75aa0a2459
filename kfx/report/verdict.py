"""Whether a measured number reproduces a printed one."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

import numpy as np


class Verdict(StrEnum):
    """The verdict on a printed number."""

    REPRODUCED = "reproduced"
    DIFFERS = "differs"
    UNDECIDED = "cannot be decided from the text"
    STALE = "stale"
    NOT_RUN = "not run"
    NONE = "no verdict"


RULE = (
    "*Reproduced*: the mean over seeds is the printed number to all its digits, or within two standard deviations of "
    "it: the deviation of the seeds, where there are three or more, or the paper's, where it prints one; for yes/no "
    "facts, such as whether classes are separable, most seeds agree. *Differs*: the number is not reproduced. "
    "*Cannot be decided from the text*: the number is not reproduced, and the text allows another reading, whose "
    "measurements stand beside it. *Stale*: measured under settings that have changed since. *Not run*: not yet "
    "measured at full settings; the cost is stated. Curves without numbers, times of another machine, and what no "
    "single run measures have *no verdict*."
)
_SEEDS = 3


def verdict(
    printed: str | None,
    measured: Sequence[float],
    deviation: float | None,
    has_readings: bool,
    is_yes_or_no: bool = False,
) -> Verdict:
    """The verdict by `RULE`.

    printed: as the paper has it, None for a curve. measured: one value for each seed. deviation: the printed one, of
        one run. has_readings: the text allows other readings. is_yes_or_no: each measurement is 1 or 0.
    """
    if not measured:
        return Verdict.NOT_RUN
    if printed is None:
        return Verdict.NONE
    if is_yes_or_no:
        agree = sum(value == float(printed) for value in measured)
        return _reproduced_or_not(2 * agree > len(measured), has_readings)
    allowed = [half_a_digit(printed)]
    if len(measured) >= _SEEDS:
        allowed.append(2 * float(np.std(measured, ddof=1)))
    if deviation is not None:
        allowed.append(2 * deviation)
    return _reproduced_or_not(abs(float(np.mean(measured)) - float(printed)) <= max(allowed) * (1 + 1e-9), has_readings)


def _reproduced_or_not(is_reproduced: bool, has_readings: bool) -> Verdict:
    if is_reproduced:
        return Verdict.REPRODUCED
    return Verdict.UNDECIDED if has_readings else Verdict.DIFFERS


def half_a_digit(printed: str) -> float:
    """Half a unit of the last printed digit: numbers within it round to the printed one."""
    exponent = Decimal(printed).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent
