"""Whether a measured number is the one that a paper printed."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from enum import StrEnum

import numpy as np


class Verdict(StrEnum):
    """What a page says of a printed number."""

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
    """By `RULE`. printed: as the paper has it, None for a picture; deviation: the paper's own, of one run.
    is_yes_or_no: whether each measurement is 1 or 0."""
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
    """Half a unit of the last printed digit: what rounds to it is the same number."""
    exponent = Decimal(printed).as_tuple().exponent
    assert isinstance(exponent, int)
    return 0.5 * 10.0**exponent
