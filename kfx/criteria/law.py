"""A measurement of a law, and the one rule by which a law holds."""

from __future__ import annotations

import math

Row = dict[str, float | str]


def row(
    law: str,
    setting: str,
    seed: int,
    measured: float,
    relation: str = "?",
    theory: float = math.nan,
    tolerance: float = 0.0,
    x: float = math.nan,
) -> Row:
    """Return what one seed measured of a law. relation: to theory, as in `verdict`. tolerance: absolute.

    x: where the measurement is a point of a curve, which the picture draws and the table leaves out.
    """
    stated: Row = {"relation": relation, "theory": theory, "tolerance": tolerance}
    return {"law": law, "setting": setting, "seed": seed, "measured": float(measured), **stated, "x": float(x)}


def verdict(measured: float, relation: str, theory: float, tolerance: float) -> str:
    """Return whether a mean over seeds stands in the relation to theory within the tolerance: "holds", "does not hold",
    or "no theory" for the relation "?"."""
    gap = round(measured - theory, 12)  # 0.95 is within 0.05 of 1
    met = {"=": abs(gap) <= tolerance, "≠": abs(gap) > tolerance, "≤": gap <= tolerance, "<": gap < 0, ">": gap > 0}
    return "no theory" if relation == "?" else "holds" if met[relation] else "does not hold"
