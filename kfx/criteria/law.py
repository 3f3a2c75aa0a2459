"""A measurement of a law, and the one rule by which a law holds."""

from __future__ import annotations

import numpy as np

Row = dict[str, float | str]

_RELATIONS = {
    "=": lambda gap, tolerance: abs(gap) <= tolerance,
    "≠": lambda gap, tolerance: abs(gap) > tolerance,
    "≤": lambda gap, tolerance: gap <= tolerance,
    "<": lambda gap, tolerance: gap < -tolerance,
    ">": lambda gap, tolerance: gap > tolerance,
}


def row(law: str, setting: str, seed: int, measured: float, relation: str, theory: float, tolerance: float = 0) -> Row:
    """Return what one seed measured of a law. relation: to theory, as in `verdict`. tolerance: absolute."""
    return point(law, setting, seed, np.nan, measured) | {
        "relation": relation,
        "theory": theory,
        "tolerance": tolerance,
    }


def point(law: str, series: str, seed: int, x: float, measured: float) -> Row:
    """Return a point of a curve over x, which the picture draws and the table leaves out."""
    return {"law": law, "setting": series, "seed": seed, "x": float(x), "measured": float(measured)}


def verdict(measured: float, relation: str, theory: float, tolerance: float) -> str:
    """Return "holds" where a mean over seeds stands in the relation to theory within the tolerance, or "does not hold";
    "no theory" for the relation "?"."""
    if relation == "?":
        return "no theory"
    gap = round(measured - theory, 12)  # 0.05 is no more than 0.05
    return "holds" if _RELATIONS[relation](gap, tolerance) else "does not hold"
