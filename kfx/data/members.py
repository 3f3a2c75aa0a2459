"""Settings of forecasts as a config has them: the run's own, and those of `dataset.others`."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable
from typing import TYPE_CHECKING

from kfx.config.choices import PERIODS, SCALES
from kfx.config.option import Settings
from kfx.data.gaps import LEFT_OUT

if TYPE_CHECKING:
    from kfx.data.choice import Setting

INCREMENT, NEXT = "increment", "next"
SEEN = ("lags", "target", "differences", "logarithm", "missing", "calendar")
"""What says what windows see: fields of `dataset`."""
MEMBER = (*SEEN, "length", "regularization", "scale")


def is_calendar(value: object) -> bool:
    """Whether a value is a list of names of `PERIODS` and of periods of time."""
    return isinstance(value, list) and all(
        each in PERIODS if isinstance(each, str) else _is_number(each) and 0 < each < math.inf for each in value
    )


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def periods_of(calendar: Iterable[str | float]) -> tuple[float, ...]:
    """Periods of time, from names of `PERIODS` and numbers."""
    return tuple(PERIODS[each] if isinstance(each, str) else float(each) for each in calendar)


def seen_by(member: Settings) -> Settings:
    """The fields of `SEEN` of a member; older runs do not record all."""
    return {"missing": LEFT_OUT} | {key: member[key] for key in SEEN if key in member}


def is_member(value: object) -> bool:
    """Whether a value is a setting as `dataset.others` has it; what windows see is checked where they are made."""
    member: Settings = {"missing": LEFT_OUT, "calendar": []} | value if isinstance(value, dict) else {}
    if set(member) != set(MEMBER) or None in [member[key] for key in SEEN] or not is_calendar(member["calendar"]):
        return False
    length, shift = member["length"], member["regularization"]
    return (length is None or length > 0) and shift >= 0 and member["scale"] in SCALES


def recorded(setting: Setting) -> dict[str, object]:
    """A setting as `dataset.others` has it."""
    windows, shift = setting.windows, setting.regularization
    seen: dict[str, object] = {
        "lags": windows.lags,
        "target": INCREMENT if windows.is_increment else NEXT,
        "differences": list(windows.differences.steps),
        "logarithm": windows.differences.logarithm,
        "missing": windows.missing,
        "calendar": list(windows.periods),
    }
    return seen | {"length": setting.length, "regularization": shift.value, "scale": shift.scale}
