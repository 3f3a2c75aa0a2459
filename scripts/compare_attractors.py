"""Compare the attractors of kfx's forecasts with the published ones of HMKF (Jahagirdar et al. 2025) on 130 systems.

python scripts/compare_attractors.py [--methods "kfx, one lag"] [--part 0/2] [--systems Lorenz,Rossler]
python scripts/compare_attractors.py --summary
python scripts/compare_attractors.py --published results.csv         the published rows, from HMKF's repository

Each (system, method) becomes a row of runs/forecasts/attractors.csv; rows that are there are not computed again. The
systems are dysts' (kernel-flows[dysts]) from their own starting points: 3500 points, 100 a period, of which the first
1200 are known, as in HMKF's notebook; here LSODA integrates at 1e-10, there Radau at 1e-12, so that trajectories part
after a while. Values are in standard deviations of the known points.

Two readings of a forecast's attractor:
  short   40 forecasts of 50 steps, half a period, from points of the test part, as HMKF's notebook has them
  free    one forecast of 2000 steps from the end of the known part
What HMKF calls the Hausdorff distance is `modified_hausdorff`, the mean of squared distances, of `short`; it takes
every second point. Seconds are of a processor, with everything that is chosen.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kfx import KernelFlowForecaster
from kfx.evaluation import attractors

FOLDER = Path(__file__).parent.parent / "runs" / "forecasts"
KNOWN, TOTAL, STARTS, SHORT, FREE = 1200, 3500, 40, 50, 2000
OUTSIDE = ("CircadianRhythm", "DynSysDelay", "IkedaDelay", "PiecewiseCircuit", "ScrollDelay", "SprottDelay")
"""Systems that HMKF's repository leaves out of its 130."""
READINGS = {"short": attractors.NAMES[:3], "free": attractors.NAMES[:4]}
COLUMNS = ("system", "method", "lags", "seconds", *(f"{of}.{name}" for of, own in READINGS.items() for name in own))
FARTHEST = 8.0
"""Forecasts are kept within as many deviations, as HMKF's are."""
Fit = Callable[[np.ndarray], KernelFlowForecaster]


def nothing_chosen(known: np.ndarray) -> KernelFlowForecaster:
    """One lag, the median distance as length, λ = 1e-8."""
    z = (known - known.mean(axis=0)) / known.std(axis=0)
    length = float(np.median(np.linalg.norm(z[::7, None] - z[::7], axis=2)))
    return KernelFlowForecaster({"name": "rbf", "sigma": length}, lags=1, regularization=1e-8).fit(known)


METHODS: dict[str, Fit | None] = {
    "kfx": lambda known: KernelFlowForecaster().fit(known),
    "kfx, one lag": lambda known: KernelFlowForecaster(lags=1).fit(known),
    "nothing chosen": nothing_chosen,
    "the known points": None,
}
"""None: the known points themselves are the attractor, without any model."""


def series_of(system: str) -> np.ndarray:
    """The points of a system, (3500, coordinates)."""
    from dysts import flows
    from dysts.base import DynSysDelay

    model = getattr(flows, system)()
    exact = {} if isinstance(model, DynSysDelay) else {"method": "LSODA", "rtol": 1e-10, "atol": 1e-10}
    found = np.asarray(model.make_trajectory(TOTAL, pts_per_period=100, resample=True, **exact), dtype=float)
    if found.shape[0] != TOTAL or not np.isfinite(found).all():
        raise ValueError(f"the integration gave {found.shape}, or values that are not finite")
    return found


def runs_of(fitted: KernelFlowForecaster, series: np.ndarray) -> dict[str, np.ndarray]:
    """The forecasts of each reading, (runs, steps, coordinates)."""
    places = KNOWN + np.linspace(0, TOTAL - KNOWN - 1, STARTS, dtype=int)
    short = [fitted.predict(SHORT, series=series[: at + 1]) for at in places]
    return {"short": np.stack(short), "free": fitted.predict(FREE)[None]}


def row(system: str, method: str, series: np.ndarray) -> dict[str, object]:
    """Fit a method to the known part and measure it."""
    known, truth = series[:KNOWN], series[KNOWN:]
    began, fit = time.process_time(), METHODS[method]
    found: dict[str, object] = {"system": system, "method": method}
    if fit is None:
        runs = dict.fromkeys(READINGS, known[None])
    else:
        fitted = fit(known)
        runs = runs_of(fitted, series)
        found["lags"] = fitted.windows_.lags
    found["seconds"] = round(time.process_time() - began, 3)
    mean, scale = known.mean(axis=0), known.std(axis=0)
    there = (truth - mean) / scale
    for reading, names in READINGS.items():
        own = np.nan_to_num((runs[reading] - mean) / scale, nan=FARTHEST).clip(-FARTHEST, FARTHEST)
        spread = own.reshape(-1, own.shape[2])
        a, b = (there[::2], spread[::2]) if reading == "short" else (there, spread)
        measured = {name: getattr(attractors, name)(a, b) for name in names if name != "spectral_distance"}
        if "spectral_distance" in names and own.shape[1] <= len(there):
            measured["spectral_distance"] = attractors.spectral_distance(there[None, : own.shape[1]], own)
        found |= {f"{reading}.{name}": value for name, value in measured.items()}
    return found


def table() -> pd.DataFrame:
    """All rows."""
    found = [pd.read_csv(path) for path in sorted(FOLDER.glob("attractors*.csv")) if path.stat().st_size]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(COLUMNS))


def add(rows: list[dict[str, object]], path: Path) -> None:
    """Append rows to a file."""
    is_new = not path.exists()
    with path.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def compare(systems: list[str], methods: list[str], path: Path) -> list[str]:
    """Compute the rows that are missing; return the systems that failed."""
    failed, there = [], set(table()[["system", "method"]].itertuples(index=False, name=None))
    for system in systems:
        missing = [method for method in methods if (system, method) not in there]
        try:
            series = series_of(system) if missing else np.empty(0)
            for method in missing:
                add([row(system, method, series)], path)
        except Exception as error:  # a system that fails must not end the comparison
            print(f"{system}: {type(error).__name__}: {error}", flush=True)
            failed.append(system)
    return failed


def published(path: Path) -> list[dict[str, object]]:
    """Rows of HMKF's `results.csv` for the systems in its scope."""
    found = pd.read_csv(path)
    found = found[~found["System"].isin(OUTSIDE)]
    pairs = found[["System", "Time", "HD"]].itertuples(index=False, name=None)
    keys = ("system", "seconds", "short.modified_hausdorff")
    return [{"method": "HMKF, published", **dict(zip(keys, pair, strict=True))} for pair in pairs]


def summary() -> pd.DataFrame:
    """For each method the medians over the systems that it has, how many these are, and on how many of them its
    modified distance is smaller than HMKF's."""
    rows = table()
    distance = rows.pivot_table(index="system", columns="method", values="short.modified_hausdorff")
    theirs = distance["HMKF, published"]
    each = rows.groupby("method")
    found = each[[name for name in COLUMNS if "." in name]].median()
    found.insert(0, "systems", each["system"].nunique())
    found.insert(1, "seconds", each["seconds"].median())
    found.insert(2, "longest", each["seconds"].max())
    found.insert(3, "better than HMKF on", distance.lt(theirs, axis=0).sum())
    found.insert(4, "HMKF there", [theirs[distance[name].notna()].median() for name in found.index])
    return found.sort_values("short.modified_hausdorff")


SHOWN = {
    "systems": "systems",
    "short.modified_hausdorff": "40 forecasts: modified Hausdorff",
    "HMKF there": "HMKF on the same systems",
    "better than HMKF on": "better than HMKF on",
    "free.modified_hausdorff": "free run: modified Hausdorff",
    "free.hausdorff": "Hausdorff",
    "free.state_space_divergence": "D_stsp",
    "free.spectral_distance": "D_H",
    "seconds": "seconds",
}
"""Columns of the summary that the page shows, and their heads there."""


def as_markdown() -> str:
    """The table of docs/forecasting.md."""
    lines = ["| method | " + " | ".join(SHOWN.values()) + " |", "|---|" + "---:|" * len(SHOWN)]
    for method, own in summary()[list(SHOWN)].iterrows():
        digits = {"systems": 0, "better than HMKF on": 0, "seconds": 1}
        cells = ["-" if np.isnan(cell) else f"{cell:.{digits.get(name, 3)}f}" for name, cell in own.items()]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="", help="names, separated by semicolons (default: all)")
    parser.add_argument("--systems", default="", help="names, separated by commas (default: HMKF's)")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n processes that share the work")
    parser.add_argument("--published", type=Path, help="read the published rows from this file")
    parser.add_argument("--summary", action="store_true", help="print a table of what is there")
    parsed = parser.parse_args()
    if parsed.published:
        add(published(parsed.published), FOLDER / "attractors.csv")
        return
    if parsed.summary:
        print(summary().round(3).T.to_string())
        return
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    part, parts = map(int, parsed.part.split("/"))
    listed = sorted(table().query("method == 'HMKF, published'")["system"])
    mixed = np.random.default_rng(0).permutation(listed).tolist()  # so that the first are a sample of all
    systems = parsed.systems.split(",") if parsed.systems else mixed
    methods = [name for name in parsed.methods.split(";") if name] or list(METHODS)
    if unknown := [name for name in methods if name not in METHODS]:
        parser.error(f"--methods {';'.join(unknown)}: expected out of {'; '.join(METHODS)}")
    path = FOLDER / ("attractors.csv" if parts == 1 else f"attractors-{part}.csv")
    if failed := compare(systems[part::parts], methods, path):
        parser.exit(1, f"{len(failed)} of {len(systems[part::parts])} systems failed: {', '.join(failed)}\n")


if __name__ == "__main__":
    main()
