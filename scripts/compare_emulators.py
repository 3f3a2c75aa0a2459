"""Compare kfx with other emulators of simulators.

python scripts/compare_emulators.py [--cases borehole,prosail] [--sizes 200,500] [--seeds 5] [--methods "kfx;network"]
python scripts/compare_emulators.py --design                 python scripts/compare_emulators.py --speed
python scripts/compare_emulators.py --summary                python scripts/compare_emulators.py --page

Training inputs are a Latin hypercube, test inputs 500 uniform points; outputs of spectra are reduced to ten principal
components for all methods. Each (case, N, seed, method) is a row of runs/emulators/emulators.csv; rows that are there
are not computed again. Seconds are of a processor, which other processes do not lengthen.
"""

from __future__ import annotations

import argparse
import csv
import time
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from emulator_methods import BESIDE, BY_LIKELIHOOD, METHODS, RESTARTED, kfx

from kfx import KernelFlowRegressor
from kfx import design as kfx_design
from kfx.data.simulators import SIMULATORS, simulate
from kfx.numerics.calibration import of_values
from kfx.numerics.streams import Streams

FOLDER = Path(__file__).parent.parent / "runs" / "emulators"
CASES = ("borehole", "wing_weight", "piston", "otl_circuit", "ishigami", "prosail")
COLUMNS = ("case", "n", "seed", "method", "rmse", "relative", "coverage_95", "crps", "fit", "predict", "tau")
N_TEST = 500


def sensitivities(case: str) -> np.ndarray:
    """The total Sobol index of each input of a simulator, (inputs,), by 4096 points (Saltelli et al. 2010)."""
    from scipy.stats import sobol_indices, uniform

    simulator = SIMULATORS[case]
    low, high = np.array(list(simulator.ranges.values())).T

    def of_unit(unit: np.ndarray) -> np.ndarray:
        return np.asarray(simulator.compute(tuple(low[:, None] + (high - low)[:, None] * unit)))

    found = sobol_indices(func=of_unit, n=4096, dists=[uniform()] * len(low), rng=np.random.default_rng(0))
    return np.asarray(found.total_order)


def measure(case: str, n: int, seed: int, method: str) -> dict[str, object]:
    data = simulate(n, N_TEST, case, Streams(seed)["data"])
    centre, unit = data.x_train.mean(axis=0), data.x_train.std(axis=0)
    x, at = (data.x_train - centre) / unit, (data.x_test - centre) / unit
    mean, scale = data.y_train.mean(axis=0), data.y_train.std(axis=0)
    began = time.process_time()
    predict, lengths = METHODS[method](x, (data.y_train - mean) / scale)
    fitted = time.process_time()
    found, spread = (np.asarray(each).reshape(len(at), -1) for each in predict(at))
    done = time.process_time()
    truth = (data.y_test - mean) / scale
    error = found - truth
    fit = of_values(found, spread, truth)
    tau = np.nan
    if lengths is not None:
        from scipy.stats import kendalltau

        tau = kendalltau(-np.asarray(lengths), sensitivities(case)).statistic
    return {
        "case": case,
        "n": n,
        "seed": seed,
        "method": method,
        "rmse": float(np.sqrt(np.mean(error**2))),
        "relative": float(np.abs(error * scale).sum() / np.abs(data.y_test).sum()),
        "coverage_95": fit["coverage_95"],
        "crps": fit["crps"],
        "fit": round(fitted - began, 2),
        "predict": round(done - fitted, 3),
        "tau": tau,
    }


def table() -> pd.DataFrame:
    path = FOLDER / "emulators.csv"
    return pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(COLUMNS))


def compare(cases: list[str], sizes: list[int], seeds: int, methods: list[str]) -> None:
    """Compute the rows that are missing."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    there = {tuple(row) for row in table()[["case", "n", "seed", "method"]].itertuples(index=False, name=None)}
    with (FOLDER / "emulators.csv").open("a", newline="") as stream:
        rows = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        if not there:
            rows.writeheader()
        for case in cases:
            for n in sizes:
                for seed in range(seeds):
                    for method in methods:
                        if (case, n, seed, method) not in there:
                            rows.writerow(measure(case, n, seed, method))
                            stream.flush()
                            print(case, n, seed, method, flush=True)


def design(seeds: int) -> None:
    """Compare 200 runs of a Latin hypercube with 100 of one and 100 chosen among 2000 uniform inputs, twenty at a time.

    Each (case, seed, design) becomes a row of runs/emulators/design.csv: the RMSE, in units of the outputs' deviation.
    """
    rows = []
    for case in CASES[:-1]:
        for seed in range(seeds):
            streams = Streams(seed)
            whole = simulate(200, N_TEST, case, streams["data"])
            start = simulate(100, 2000, case, streams["design"])
            centre, unit = whole.x_train.mean(axis=0), whole.x_train.std(axis=0)
            of = {"Latin hypercube": (whole.x_train, whole.y_train)}
            for name in ("posterior variance", "random"):
                x, y, left = start.x_train, start.y_train, np.arange(2000)
                for _ in range(5):
                    candidates = start.x_test[left]
                    chosen = streams["draws"].permutation(len(left))[:20]
                    if name == "posterior variance":
                        fitted = emulator().fit((x - centre) / unit, y)
                        chosen = kfx_design(fitted, (candidates - centre) / unit, 20)
                    x, y = np.r_[x, candidates[chosen]], np.r_[y, start.y_test[left[chosen]]]
                    left = np.delete(left, chosen)
                of[name] = x, y
            for name, (x, y) in of.items():
                found = emulator().fit((x - centre) / unit, y).predict((whole.x_test - centre) / unit)
                error = found.reshape(whole.y_test.shape) - whole.y_test
                rmse = float(np.sqrt(np.mean(error**2)) / whole.y_test.std())
                rows.append({"case": case, "seed": seed, "design": name, "rmse": rmse})
                print(rows[-1], flush=True)
    pd.DataFrame(rows).to_csv(FOLDER / "design.csv", index=False)


def emulator() -> KernelFlowRegressor:
    return KernelFlowRegressor("rbf", scale=None, device={"name": "cpu", "threads": 1})


def speed() -> None:
    """Print predictions a second of one core: 10 components, 1000 outputs, N = 1000, with and without deviations."""
    rng = np.random.default_rng(0)
    x, at = rng.uniform(size=(1000, 8)), rng.uniform(size=(20_000, 8))
    y = np.sin(3 * x @ rng.normal(size=(8, 10))) @ rng.normal(size=(10, 1000))
    outputs = {"reduce": "pca", "components": 10}
    began = time.process_time()
    model = KernelFlowRegressor("rbf", scale=None, outputs=outputs, device={"name": "cpu", "threads": 1}).fit(x, y)
    print(f"fit of 10 components: {time.process_time() - began:.1f} s of a processor")
    for return_std in (False, True):
        began = time.process_time()
        model.predict(at, return_std=return_std)
        what = "with deviations" if return_std else "means"
        print(f"{what}: {len(at) / (time.process_time() - began):.0f} predictions/s")


def summary() -> pd.DataFrame:
    """Means over seeds, with their number, the cases in order."""
    rows = table()
    rows["case"] = pd.Categorical(rows["case"], list(CASES))
    rows = rows.sort_values(["case", "n"], kind="stable").astype({"case": str})
    each = rows.groupby(["case", "n", "method"], sort=False)
    return each.mean().drop(columns="seed").assign(seeds=each["seed"].nunique())


def as_markdown() -> str:
    """What the rows say, and a table for each case and N."""
    said = [_beside(name) for name in ("kfx", BY_LIKELIHOOD)]
    lines = [*said, *_of_restarts(), "", *_of_designs(), ""]
    for (case, n), found in summary().groupby(level=["case", "n"], sort=False):
        lines += [
            f"**{case}**, {len(SIMULATORS[case].ranges)} inputs, N = {n}",
            "",
            "| emulator | seeds | RMSE / σ | error / value | coverage of 95 % | CRPS / σ | fit, s | predict, s | τ |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for (_, _, method), row in found.sort_values("rmse").iterrows():
            tau = "-" if np.isnan(row["tau"]) else f"{row['tau']:.2f}"
            cells = [f"{row['seeds']:.0f}", f"{row['rmse']:.5f}", f"{100 * row['relative']:.3f} %"]
            cells += [f"{100 * row['coverage_95']:.1f} %", f"{row['crps']:.5f}"]
            cells += [f"{row['fit']:.1f}", f"{row['predict']:.2f}", tau]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip()


def ratios(name: str, other: str) -> pd.DataFrame:
    """The RMSE and the time of a fit in units of another method's, by case and N: means over the seeds of both."""
    keys = ["case", "n", "seed"]
    own, theirs = (table().query("method == @each").set_index(keys)[["rmse", "fit"]] for each in (name, other))
    both = own.index.intersection(theirs.index)
    own, theirs = (each.loc[both].groupby(["case", "n"]).mean() for each in (own, theirs))
    return own / theirs


def _beside(name: str, other: str = BESIDE) -> str:
    """A sentence on the errors and the times of a method beside another one's."""
    found = ratios(name, other)
    ratio, time_ = found["rmse"], found["fit"].xs(500, level="n")
    return (
        f"*{name}* has a smaller RMSE than *{other}* in {int((ratio < 1).sum())} of {len(ratio)} comparisons, "
        f"{ratio.min():.2f} to {ratio.max():.2f} times theirs; at N = 500 its fit takes {time_.min():.2f} to "
        f"{time_.max():.2f} times as long."
    )


def _of_restarts() -> list[str]:
    """A sentence on what restarts change, where they were measured."""
    found = ratios(RESTARTED, BESIDE)
    if found.empty:
        return []
    own, measured = ratios(BY_LIKELIHOOD, RESTARTED)["rmse"], sorted({*found.index.get_level_values("n")})
    (least, fast), (most, slow) = found.min()[["rmse", "fit"]], found.max()[["rmse", "fit"]]
    return [
        f"Restarts, measured on {found.index.get_level_values('case').nunique()} simulators at N = "
        f"{' and '.join(map(str, measured))}, change the RMSE of *{BESIDE}* to "
        f"{least:.2f} to {most:.2f} times that of one start, in {fast:.1f} to {slow:.1f} times the time; "
        f"*{BY_LIKELIHOOD}* has {own.min():.2f} to {own.max():.2f} times their RMSE."
    ]


def _of_designs() -> list[str]:
    """A table of the mean RMSE of each simulator and design."""
    rows = pd.read_csv(FOLDER / "design.csv")
    means = rows.groupby(["case", "design"])["rmse"].mean().unstack().loc[list(CASES[:-1])]
    names = ["Latin hypercube", "random", "posterior variance"]
    wins = int((means[names[2]] < means[names[0]]).sum())
    lines = [
        "*Designs.* 200 runs: all of a Latin hypercube, or 100 of one and 100 out of 2000 uniform candidates, drawn at "
        f"random or chosen twenty at a time by `kfx.design`: RMSE / σ, means of {rows['seed'].nunique()} seeds "
        f"(`--design`). The chosen ones are better than the hypercube for {wins} of {len(means)} simulators.",
        "",
        "| simulator | " + " | ".join(names) + " |",
        "|---|---:|---:|---:|",
    ]
    cells = {case: " | ".join(f"{row[name]:.5f}" for name in names) for case, row in means.iterrows()}
    return lines + [f"| {case} | {shown} |" for case, shown in cells.items()]


def page() -> str:
    """The page docs/emulators_notes.md, from the recorded rows alone."""
    return (FOLDER / "page.md").read_text().replace("{table}", as_markdown())


def draw(n: int) -> None:
    """Draw spectra with bands and the coverage by wavelength into runs/emulators/spectrum.png, and print the error."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    data = simulate(n, N_TEST, "prosail", Streams(0)["data"])
    centre, unit = data.x_train.mean(axis=0), data.x_train.std(axis=0)
    predict, _ = kfx(kernel="rbf")((data.x_train - centre) / unit, data.y_train)
    mean, spread = predict((data.x_test - centre) / unit)
    inside = (np.abs(mean - data.y_test) < 1.96 * spread).mean(axis=0)
    error = np.abs(mean - data.y_test)
    near = ((inside >= 0.88) & (inside <= 0.99)).mean()
    print(
        f"error / value {100 * error.sum() / data.y_test.sum():.2f} %, mean of the pairs' errors "
        f"{100 * np.mean(error / data.y_test):.2f} %; coverage {100 * inside.mean():.1f} %, between 88 and 99 % at "
        f"{100 * near:.0f} % of the wavelengths"
    )
    wavelengths = 400 + np.arange(2101)
    picture = Figure(figsize=(9, 3.4), dpi=130, layout="constrained")
    FigureCanvasAgg(picture)
    left, right = picture.subplots(1, 2, width_ratios=[3, 2])
    for i, colour in zip((0, 3, 5), ("#0072b2", "#d55e00", "#009e73"), strict=True):
        left.plot(wavelengths, data.y_test[i], color=colour, linewidth=1.2)
        low, high = mean[i] - 1.96 * spread[i], mean[i] + 1.96 * spread[i]
        left.fill_between(wavelengths, low, high, color=colour, alpha=0.3, linewidth=0)
    left.plot([], [], color="#555555", linewidth=1.2, label="simulated")
    left.fill_between([], [], [], color="#555555", alpha=0.3, linewidth=0, label="emulated, 95 %")
    left.legend(frameon=False)
    left.set(xlabel="wavelength (nm)", ylabel="reflectance", title=f"three canopies, N = {n}")
    right.plot(wavelengths, 100 * inside, color="#0072b2", linewidth=1)
    right.axhline(95, color="#555555", linewidth=0.8, linestyle="--")
    right.set(xlabel="wavelength (nm)", ylabel="test spectra in the 95 % band (%)", ylim=(80, 100), title="coverage")
    for axes in (left, right):
        axes.grid(color="#e3e6ec")
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    picture.savefig(FOLDER / "spectrum.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default=",".join(CASES), help="names, separated by commas (default: all)")
    parser.add_argument("--sizes", default="200,500", help="numbers of training runs (default: 200,500)")
    parser.add_argument("--seeds", type=int, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--methods", default=";".join(METHODS), help="names, separated by semicolons (default: all)")
    parser.add_argument("--design", action="store_true", help="compare designs of the training inputs")
    parser.add_argument("--speed", action="store_true", help="print predictions a second of one core")
    parser.add_argument("--summary", action="store_true", help="print a table of what is there")
    parser.add_argument("--page", action="store_true", help="write docs/emulators_notes.md")
    parser.add_argument("--picture", action="store_true", help="draw a spectrum with the last of --sizes")
    parsed = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    if parsed.design:
        design(parsed.seeds)
    elif parsed.speed:
        speed()
    elif parsed.summary:
        print(summary().to_string())
    elif parsed.page:
        (FOLDER.parent.parent / "docs" / "emulators_notes.md").write_text(page())
    elif parsed.picture:
        draw(int(parsed.sizes.split(",")[-1]))
    else:
        sizes = [int(n) for n in parsed.sizes.split(",")]
        compare(parsed.cases.split(","), sizes, parsed.seeds, parsed.methods.split(";"))


if __name__ == "__main__":
    main()
