"""Compare kfx with other methods on Gilpin's benchmark of chaotic series.

python scripts/compare_forecasts.py [--points 15] [--methods kfx,parrot] [--part 0/2]
python scripts/compare_forecasts.py --summary                        python scripts/compare_forecasts.py --page
python scripts/compare_forecasts.py --lorenz

Each (points a period, system, method) becomes a row of runs/forecasts/gilpin.csv; rows that are there are not computed
again. The first five sixths of a series are known, and the rest is forecast. Everything is chosen on the known part.
The series are read from KFX_DATA_DIR/dysts, with the stored predictions of sixteen methods. Seconds are of a
processor, which other processes do not lengthen.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import time
import warnings
from functools import lru_cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from compare_attractors import as_markdown as of_attractors
from compare_dictionaries import as_markdown
from forecast_rivals import GRIDS, RIVALS, Forecast, short_enough
from table_page import critical_difference

from kfx import KernelFlowForecaster, KernelFlowRegressor
from kfx.config.choices import BACKTESTED
from kfx.data.backtest import FACTORS, LAGS, predictor
from kfx.data.dynamics import exponent, trajectory
from kfx.data.files import cache_folder
from kfx.data.series import gilpin, gilpin_systems
from kfx.data.windows import Trajectory, Windows, smape
from kfx.kernels import RBF

FOLDER = Path(__file__).parent.parent / "runs" / "forecasts"
COLUMNS = ("points", "system", "method", "smape", "lags", "seconds", "valid")
KNOWN, PERIODS = 5 / 6, 12
DIGITS = {"kfx is better on": 0, "seconds": 1}
TRAINED = {"optimizer": {"name": "adam", "fall_back": False}}


def kfx(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
    fitted = chosen(known.tobytes(), steps)
    return fitted.predict(steps), fitted.windows_.lags


@lru_cache(maxsize=1)
def chosen(known: bytes, steps: int) -> KernelFlowForecaster:
    return KernelFlowForecaster(steps=steps).fit(np.frombuffer(known))


def trained(objective: str) -> Forecast:
    """Train the kernel that the backtest chose, and keep it if its backtest improves."""

    def run(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
        start = chosen(known.tobytes(), steps)
        settings = {"objective": objective, "optimizer": {"name": "adam", "iterations": 100}}
        lags = start.windows_.lags
        fitted = KernelFlowForecaster(start.kernel_, lags=lags, steps=steps, **settings).fit(known)
        return fitted.predict(steps), lags

    return run


def one_step(objective: str | None, lags: int = 30) -> Forecast:
    """Windows of `lags` values, and a kernel whose length and λ come from errors of the next step alone.

    objective: trains the length; None for the median distance of two windows. Leave-one-out errors choose λ.
    """

    def run(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
        series = Trajectory(np.arange(len(known), dtype=float), known[:, None])
        windows = Windows(min(lags, len(known) // 5)).fitted([series])
        x, y, _ = windows.cut(series)
        kernel = {"name": "rbf", "ard": False, "initial": "median_distance"}
        train = (
            {"optimizer": {"name": "none", "iterations": 1}}
            if objective is None
            else TRAINED | {"objective": objective}
        )
        fitted = KernelFlowRegressor(kernel, scale=None, **train, device={"name": "cpu", "threads": 1}).fit(x, y[:, 0])
        history = known[None, -windows.reach :, None]
        forecast = windows.forecast(lambda at: fitted.predict(at)[:, None], history, np.zeros((1, 10**4)), steps)
        return forecast[0, :, 0], windows.lags

    return run


def whole_rollout(known: np.ndarray, steps: int) -> tuple[np.ndarray, int]:
    """Sixty lags, a length of twice their median distance, λ = 1e-10: nothing is chosen."""
    series = Trajectory(np.arange(len(known), dtype=float), known[:, None])
    windows = Windows(min(60, len(known) // 5)).fitted([series])
    x, y, _ = windows.cut(series)
    kernel = RBF(2 * float(np.median(np.linalg.norm(x[::7, None] - x[None, ::7], axis=2))))
    solved = np.linalg.solve(kernel.gram(x) + 1e-10 * np.eye(len(x)), y)
    predict = predictor(kernel, x, solved)
    forecast = windows.forecast(predict, known[None, -windows.reach :, None], np.zeros((1, 10**4)), steps)
    return forecast[0, :, 0], windows.lags


METHODS: dict[str, Forecast] = {
    "kfx": kfx,
    "kfx, then trained by rho": trained("rho"),
    "kfx, then trained by nll": trained("nll"),
    "nothing chosen": whole_rollout,
    "one step: untrained": one_step(None),
    "one step: rho": one_step("rho"),
    "one step: e2": one_step("interpolation_error"),
    "one step: nll": one_step("nll"),
    **RIVALS,
}


def on_lorenz(starts: int = 20, steps: int = 600) -> dict[str, float]:
    """Median valid times, in Lyapunov times, of forecasts of Lorenz' system from `starts` origins, from 400 points at
    dt = 0.025, by kfx's default and by NG-RC as in Gauthier et al. 2021: 2 delays and their products.

    Their ridge, 2.5e-6, diverges on exactly integrated data, so NG-RC has the best of several for these starts.
    """
    from reservoirpy.nodes import NVAR

    whole = trajectory("lorenz", 400 + starts * 100 + steps, 0.025, np.random.default_rng(0)).values
    known, scale = whole[:400], whole[:400].std(axis=0)
    fitted = KernelFlowForecaster().fit(known)

    def features(values: np.ndarray) -> np.ndarray:
        return np.c_[np.ones(len(values) - 1), NVAR(delay=2, order=2, strides=1).run(values)[1:]]

    x = features(known[:-1])

    def ng_rc(past: np.ndarray, ridge: float) -> np.ndarray:
        weights = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ np.diff(known, axis=0)[1:])
        values = list(past[-2:])
        for _ in range(steps):
            last = np.array(values[-2:])
            values.append(np.clip(last[-1] + features(last)[0] @ weights, -1e3, 1e3))
        return np.array(values[2:])

    ridges = [2.5e-6, *(10.0**k for k in range(-5, 3))]
    valid: dict[str, list[float]] = {"kfx": [], **{f"NG-RC, ridge {ridge:g}": [] for ridge in ridges}}
    for at in range(400, 400 + 100 * starts, 100):
        forecasts = [fitted.predict(steps, series=whole[:at]), *(ng_rc(whole[:at], ridge) for ridge in ridges)]
        for name, forecast in zip(valid, forecasts, strict=True):
            wrong = np.sqrt((((forecast - whole[at : at + steps]) / scale) ** 2).mean(axis=1)) > 0.4
            valid[name].append((wrong.argmax() if wrong.any() else steps) * 0.025 * (exponent("lorenz") or 1.0))
    return {name: float(np.median(times)) for name, times in valid.items()}


def series_of(system: str, points: int) -> tuple[np.ndarray, np.ndarray]:
    """The known values and those to forecast."""
    values = gilpin(system, points).values[:, 0]
    count = round(KNOWN * len(values))
    return values[:count], values[count:]


def score(forecast: np.ndarray, truth: np.ndarray, deviation: float, points: int) -> tuple[float, float]:
    """The sMAPE, and the valid time: the periods until the error first exceeds 0.4 deviations of the known values."""
    wrong = ~(np.abs(forecast - truth) <= 0.4 * deviation)  # NaN is wrong
    return float(smape(forecast[:, None], truth[:, None])), (wrong.argmax() if wrong.any() else len(truth)) / points


def stored(points: int) -> dict[str, dict[str, tuple[float, float]]]:
    """The sMAPE and valid time of the stored forecasts, by system and method."""
    path = cache_folder() / "dysts" / f"results_test_univariate__pts_per_period_{points}__periods_12.json.gz"
    with gzip.open(path) as stream:
        found = json.load(stream)
    scores: dict[str, dict[str, tuple[float, float]]] = {}
    for system, own in found.items():
        truth, deviation = np.ravel(own["values"]), float(series_of(system, points)[0].std())
        for method, each in own.items():
            if method != "values":
                forecast = np.ravel(each["prediction"])[: len(truth)]
                scores.setdefault(system, {})[method] = score(forecast, truth[: len(forecast)], deviation, points)
    return scores


def compare(points: int, methods: dict[str, Forecast], part: int, parts: int) -> None:
    """Compute the rows that are missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = FOLDER / ("gilpin.csv" if parts == 1 else f"gilpin-{part}.csv")
    there = {tuple(row) for row in table()[["points", "system", "method"]].itertuples(index=False, name=None)}
    is_new = not path.exists()
    torch.set_num_threads(1)
    with path.open("a", newline="") as stream:
        rows = csv.DictWriter(stream, COLUMNS)
        if is_new:
            rows.writeheader()
            stream.flush()
        known_scores = stored(points)
        systems = [system for system in gilpin_systems(points) if system in known_scores]
        for system in systems[part::parts]:
            for name, (error, valid) in known_scores[system].items():
                if (points, system, name) not in there:
                    rows.writerow(dict(zip(COLUMNS, (points, system, name, error, "", "", valid), strict=True)))
            known, truth = series_of(system, points)
            for name in methods:
                if (points, system, name) in there:
                    continue
                began = time.process_time()
                try:
                    forecast, lags = methods[name](known, len(truth))
                except Exception as error:  # a method that fails must not end the comparison
                    print(f"{system} {name}: {type(error).__name__}: {error}", flush=True)
                    continue
                # the benchmark scores all values but the last
                error, valid = score(forecast[:-1], truth[:-1], float(known.std()), points)
                seconds = round(time.process_time() - began, 3)
                rows.writerow(dict(zip(COLUMNS, (points, system, name, error, lags, seconds, valid), strict=True)))
                stream.flush()


def table() -> pd.DataFrame:
    """All rows."""
    found = [pd.read_csv(path) for path in sorted(FOLDER.glob("gilpin*.csv")) if path.stat().st_size]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=list(COLUMNS))


def errors(points: int) -> pd.DataFrame:
    """The sMAPE of each method on the systems that all of them have: systems × methods."""
    return table().query("points == @points").pivot_table(index="system", columns="method", values="smape").dropna()


def summary(points: int) -> pd.DataFrame:
    """Median and mean sMAPE, mean rank, systems on which kfx is better, mean valid time, where all methods have it, and
    seconds a system."""
    found = errors(points)
    each = table().query("points == @points and system in @found.index").groupby("method")
    columns = {
        "median sMAPE": found.median(),
        "mean sMAPE": found.mean(),
        "mean rank": found.rank(axis=1).mean(),
        "kfx is better on": found.gt(found["kfx"], axis=0).sum(),
        "valid time": each["valid"].mean().reindex(found.columns),
        "seconds": each["seconds"].mean().reindex(found.columns),
    }
    if each["valid"].count().lt(len(found)).any():
        del columns["valid time"]
    return pd.DataFrame(columns).sort_values("mean rank")


def page() -> str:
    """The page docs/forecasting.md, from the recorded rows alone."""
    median = errors(100).median()
    parts = {
        "gilpin": comparison(),
        "attractors": of_attractors(),
        "grids": of_grids(),
        "dictionaries": as_markdown(),
        "factors": ", ".join(f"{factor:g}" for factor in FACTORS[:-1]) + f" or {FACTORS[-1]:g}",
        "one step": "with the same windows for all systems and λ by leave-one-out errors, the median sMAPE is "
        f"{median['one step: untrained']:.1f} without training, {median['one step: rho']:.1f} trained by ρ, "
        f"{median['one step: e2']:.1f} by e₂ and {median['one step: nll']:.1f} by the likelihood; chosen by forecasts "
        f"it is {median['kfx']:.1f}, and {median['Gaussian process']:.1f} for the rival Gaussian process with the same "
        "choice: the choice decides more than the program.",
    }
    text = (FOLDER / "page.md").read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{name}}}", part)
    return text


def of_grids() -> str:
    """How many candidates the rivals choose among and how many kfx does, on the known parts of both samplings."""
    rivals, own = [], []
    for points in (100, 15):
        known = round(KNOWN * PERIODS * points)
        offered = [short_enough(settings, reach, known) for _, settings, _, reach in GRIDS.values()]
        rivals.append([len(each) * len(grid[2]) for each, grid in zip(offered, GRIDS.values(), strict=True)])
        own.append(sum(lags < known / 4 for lags in LAGS) * len(FACTORS) * len(BACKTESTED))
    fewer = ", ".join(f"{count} ({name})" for name, count in zip(GRIDS, rivals[1], strict=True))
    return (
        f"Each chooses among {max(rivals[0])} candidates and kfx among {own[0]}; with 15 steps a period, where windows "
        f"must be shorter than a quarter of the series, they choose among {fewer}, and kfx among {own[1]}. "
        f"{at_the_edge(100)}"
    )


def at_the_edge(points: int) -> str:
    """On how many systems each method takes the longest window that it is offered."""
    longest = {name: max(map(reach, settings)) for name, (_, settings, _, reach) in GRIDS.items()}
    rows, taken = table().query("points == @points"), []
    for name, most in {"kfx": max(LAGS), **longest}.items():
        if most:
            count = int(((rows["method"] == name) & (rows["lags"] == most)).sum())
            taken.append(f"{most} values on {count} systems by {name}")
    return f"With {points} steps the longest window on offer is taken often: {', '.join(taken)}."


def near(found: pd.DataFrame, systems: int) -> str:
    """The other methods whose mean rank is within the critical difference of kfx's."""
    ranks = found["mean rank"].drop([name for name in METHODS if name not in RIVALS])
    close = ranks - found.loc["kfx", "mean rank"] < critical_difference(len(found), systems)
    return ", ".join(f"*{name}*" for name in ranks.index[close]) or "no other method"


def comparison() -> str:
    """The tables of the page."""
    lines = []
    for points in (100, 15):
        if table().query("points == @points").empty:
            continue
        found, of_all = summary(points), errors(points)
        best = of_all[[name for name in of_all if name not in METHODS]].min(axis=1)
        counts = f"{len(of_all)} systems, {points} steps a period"
        beside = ", ".join(f"*{name}* on {(of_all['kfx'] < of_all[name]).sum()}" for name in GRIDS)
        won = int((of_all["kfx"] < best).sum()), int((of_all["kfx"] < of_all["NBEATSModel"]).sum())
        lines += [
            f"**{counts}.** kfx is better than N-BEATS, the best of the sixteen stored methods by its median, on "
            f"{won[1]}, and better than the best of the sixteen, chosen for each system by its error, on {won[0]}. "
            f"Of the rivals with its own choice it is better than {beside}. By mean rank {near(found, len(of_all))} "
            "cannot be told from kfx at 5 % (Nemenyi).",
            "",
            "| method | " + " | ".join(found.columns) + " |",
            "|---|" + "---:|" * len(found.columns),
        ]
        for method, row in found.iterrows():
            cells = ["-" if np.isnan(cell) else f"{cell:.{DIGITS.get(name, 2)}f}" for name, cell in row.items()]
            lines.append(f"| {method} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def draw(points: int) -> None:
    """Draw the mean ranks with the critical difference into runs/forecasts/."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = summary(points)[::-1]
    systems = len(errors(points))
    picture = Figure(figsize=(6.4, 0.26 * len(found) + 1.3), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    axes = picture.subplots()
    far, own = critical_difference(len(found), systems), found.loc["kfx", "mean rank"]
    axes.axvspan(own - far, own + far, color="#eef0f4", label="not different from kfx at 5 % (Nemenyi)")
    of_kfx = [name in METHODS and name not in RIVALS for name in found.index]
    colours = [
        "#d55e00" if name == "kfx" else "#e69f00" if own else "#0072b2"
        for name, own in zip(found.index, of_kfx, strict=True)
    ]
    axes.scatter(found["mean rank"], np.arange(len(found)), color=colours)
    axes.set_yticks(np.arange(len(found)), found.index)
    axes.set_xlabel(f"mean rank over {systems} systems (1 is best)")
    axes.grid(axis="x", color="#d5d9e0")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    picture.legend(frameon=False, loc="outside lower center", fontsize=8)
    picture.savefig(FOLDER / f"ranks_{points}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, choices=(100, 15), default=100, help="steps a period (default: 100)")
    parser.add_argument("--methods", default="", help="names, separated by semicolons (default: all)")
    parser.add_argument("--part", default="0/1", help="i/n: the i-th of n processes that share the work")
    parser.add_argument("--lorenz", action="store_true", help="print valid times on Lorenz' system beside NG-RC's")
    parser.add_argument("--summary", action="store_true", help="print a table of what is there")
    parser.add_argument("--page", action="store_true", help="write docs/forecasting.md and its pictures")
    parsed = parser.parse_args()
    if parsed.lorenz:
        print(on_lorenz())
        return
    if parsed.summary:
        print(f"{len(errors(parsed.points))} systems\n{summary(parsed.points).round(2).to_string()}")
        return
    if parsed.page:
        (FOLDER.parent.parent / "docs" / "forecasting.md").write_text(page())
        for points in sorted({*table()["points"]}):
            draw(points)
        return
    warnings.filterwarnings("ignore")
    chosen = [name for name in parsed.methods.split(";") if name] or list(METHODS)
    part, parts = map(int, parsed.part.split("/"))
    compare(parsed.points, {name: METHODS[name] for name in chosen}, part, parts)


if __name__ == "__main__":
    main()
