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
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from kfx import KernelFlowRegressor
from kfx import design as kfx_design
from kfx.data.simulators import SIMULATORS, simulate
from kfx.numerics.calibration import of_values
from kfx.numerics.streams import Streams

FOLDER = Path(__file__).parent.parent / "runs" / "emulators"
CASES = ("borehole", "wing_weight", "piston", "otl_circuit", "ishigami", "prosail")
COLUMNS = ("case", "n", "seed", "method", "rmse", "relative", "coverage_95", "crps", "fit", "predict", "tau")
COMPONENTS, N_TEST = 10, 500
Emulator = Callable[[np.ndarray, np.ndarray], tuple[Callable, np.ndarray | None]]
"""Maps inputs, (n, inputs), and standardized outputs, (n, outputs), to a function that predicts a mean and a deviation,
(m, outputs) each, and to the length of each input, if the emulator has one output and lengths."""


def kfx(**settings: object) -> Emulator:
    def fit(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
        outputs = {"reduce": "pca", "components": COMPONENTS} if y.shape[1] > COMPONENTS else None
        model = KernelFlowRegressor(outputs=outputs, device={"name": "cpu", "threads": 1}, **settings).fit(x, y)
        lengths = model.kernel_.parameters.get("lengths") if y.shape[1] == 1 else None
        return lambda at: model.predict(at, return_std=True), lengths

    return fit


def gaussian_process(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
    """scikit-learn's, with a Gaussian kernel with a length for each input, one for each component."""
    from sklearn.decomposition import PCA
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    reduction = PCA(COMPONENTS).fit(y) if y.shape[1] > COMPONENTS else None
    scores = y if reduction is None else reduction.transform(y)
    start = ConstantKernel() * RBF(3 * np.ones(x.shape[1]), (1e-2, 1e5)) + WhiteKernel(1e-6, (1e-12, 1.0))
    models = [GaussianProcessRegressor(start, normalize_y=True, random_state=0).fit(x, column) for column in scores.T]

    def predict(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        mean, spread = (
            np.stack(each, axis=1) for each in zip(*(m.predict(at, return_std=True) for m in models), strict=True)
        )
        if reduction is None:
            return mean, spread
        return reduction.inverse_transform(mean), np.sqrt(spread**2 @ reduction.components_**2)

    return predict, models[0].kernel_.k1.k2.length_scale if y.shape[1] == 1 else None


def gpytorch_independent(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
    """GPyTorch's exact Gaussian processes, one for each component, as one batch; 300 steps of Adam."""
    import gpytorch
    from sklearn.decomposition import PCA

    reduction = PCA(COMPONENTS, whiten=True).fit(y) if y.shape[1] > COMPONENTS else None
    points, scores = torch.tensor(x), torch.tensor(y if reduction is None else reduction.transform(y)).T
    batch = torch.Size([len(scores)])

    class Independent(gpytorch.models.ExactGP):
        def __init__(self, likelihood: gpytorch.likelihoods.Likelihood) -> None:
            super().__init__(points, scores, likelihood)
            self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
            inner = gpytorch.kernels.RBFKernel(ard_num_dims=x.shape[1], batch_shape=batch)
            self.covar_module = gpytorch.kernels.ScaleKernel(inner, batch_shape=batch)

        def forward(self, at: torch.Tensor) -> gpytorch.distributions.MultivariateNormal:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(at), self.covar_module(at))

    noise = gpytorch.constraints.GreaterThan(1e-8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood(noise_constraint=noise, batch_shape=batch).double()
    model = Independent(likelihood).double()
    model.covar_module.base_kernel.lengthscale = 3.0
    likelihood.noise = 1e-4
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    for _ in range(300):
        optimizer.zero_grad()
        (-evidence(model(points), scores).sum()).backward()
        optimizer.step()
    model.eval()
    likelihood.eval()

    def predict(at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            found = likelihood(model(torch.tensor(at)))
        mean, spread = found.mean.T.numpy(), found.stddev.T.numpy()
        if reduction is None:
            return mean, spread
        scale = np.sqrt(reduction.explained_variance_)
        return reduction.inverse_transform(mean), np.sqrt((spread * scale) ** 2 @ reduction.components_**2)

    lengths = model.covar_module.base_kernel.lengthscale.detach().numpy()[0, 0]
    return predict, lengths if y.shape[1] == 1 else None


def network(x: np.ndarray, y: np.ndarray) -> tuple[Callable, np.ndarray | None]:
    """Three layers of 128 units, 2000 steps of Adam; the deviation is that of a fifth of the points left out."""
    torch.manual_seed(0)
    held = len(x) // 5
    layers = [torch.nn.Linear(x.shape[1], 128), torch.nn.SiLU(), torch.nn.Linear(128, 128), torch.nn.SiLU()]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(128, y.shape[1]))
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2000)
    points, targets = torch.tensor(x[held:], dtype=torch.float32), torch.tensor(y[held:], dtype=torch.float32)
    for _ in range(2000):
        optimizer.zero_grad()
        (model(points) - targets).square().mean().backward()
        optimizer.step()
        schedule.step()

    def mean(at: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor(at, dtype=torch.float32)).numpy().astype(float)

    spread = np.sqrt(np.mean((mean(x[:held]) - y[:held]) ** 2, axis=0))
    return lambda at: (mean(at), np.broadcast_to(spread, (len(at), y.shape[1]))), None


THEIRS = {"objective": {"name": "loo", "form": "held_out"}, "regularization": "trained",
          "sampler": {"name": "centres", "batch_size": 64},
          "optimizer": {"name": "amsgrad", "iterations": 700, "learning_rate": 0.02, "fall_back": False}}  # fmt: skip
UNTRAINED = {"optimizer": {"name": "none", "iterations": 1}}
BY_LIKELIHOOD = "kfx, nll by L-BFGS"
SMALL = {"selection": "trained", "value": 1e-6}
METHODS: dict[str, Emulator] = {
    "kfx": kfx(kernel="rbf"),
    "kfx, Matérn 5/2": kfx(kernel="matern"),
    "kfx, untrained": kfx(kernel={"name": "rbf", "ard": False, "initial": "median_distance"}, **UNTRAINED),
    "kfx, by rho": kfx(kernel="rbf", objective="rho"),
    "kfx, by nll": kfx(kernel="rbf", objective="nll"),
    BY_LIKELIHOOD: kfx(kernel="rbf", objective="nll", regularization=SMALL, optimizer={"name": "lbfgs"}),
    "kfx, by loo": kfx(kernel="rbf", objective="loo"),
    "kfx, as KernelFlows.jl": kfx(kernel="emulator", **THEIRS),
    "scikit-learn GPR": gaussian_process,
    "GPyTorch": gpytorch_independent,
    "network": network,
}


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
    return KernelFlowRegressor("rbf", device={"name": "cpu", "threads": 1})


def speed() -> None:
    """Print predictions a second of one core: 10 components, 1000 outputs, N = 1000, with and without deviations."""
    rng = np.random.default_rng(0)
    x, at = rng.uniform(size=(1000, 8)), rng.uniform(size=(20_000, 8))
    y = np.sin(3 * x @ rng.normal(size=(8, 10))) @ rng.normal(size=(10, 1000))
    outputs = {"reduce": "pca", "components": 10}
    began = time.process_time()
    model = KernelFlowRegressor("rbf", outputs=outputs, device={"name": "cpu", "threads": 1}).fit(x, y)
    print(f"fit of 10 components: {time.process_time() - began:.1f} s of a processor")
    for return_std in (False, True):
        began = time.process_time()
        model.predict(at, return_std=return_std)
        what = "with deviations" if return_std else "means"
        print(f"{what}: {len(at) / (time.process_time() - began):.0f} predictions/s")


def summary() -> pd.DataFrame:
    """Means over seeds, the cases in order."""
    rows = table()
    rows["case"] = pd.Categorical(rows["case"], list(CASES))
    rows = rows.sort_values(["case", "n"], kind="stable").astype({"case": str})
    return rows.drop(columns="seed").groupby(["case", "n", "method"], sort=False).mean()


def as_markdown() -> str:
    """What the rows say, and a table for each case and N."""
    lines = [*(_beside(name) for name in ("kfx", BY_LIKELIHOOD)), "", *_of_designs(), ""]
    for (case, n), found in summary().groupby(level=["case", "n"], sort=False):
        seeds = table().query("case == @case and n == @n")["seed"].nunique()
        what = f"{len(SIMULATORS[case].ranges)} inputs, N = {n}, {seeds} seed{'s' * (seeds > 1)}"
        lines += [
            f"**{case}**, {what}",
            "",
            "| emulator | RMSE / σ | error / value | coverage of 95 % | CRPS / σ | fit, s | predict, s | τ |",
            "|---|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for (_, _, method), row in found.sort_values("rmse").iterrows():
            tau = "-" if np.isnan(row["tau"]) else f"{row['tau']:.2f}"
            cells = [f"{row['rmse']:.5f}", f"{100 * row['relative']:.3f} %", f"{100 * row['coverage_95']:.1f} %"]
            cells += [f"{row['crps']:.5f}", f"{row['fit']:.1f}", f"{row['predict']:.2f}", tau]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines).rstrip()


def _beside(name: str, other: str = "scikit-learn GPR") -> str:
    """A sentence on the errors and the times of a method beside another one's."""
    own, theirs = (summary().xs(method, level="method") for method in (name, other))
    both = own.index.intersection(theirs.index)
    own, theirs = own.loc[both], theirs.loc[both]
    ratio, time_ = own["rmse"] / theirs["rmse"], (own["fit"] / theirs["fit"]).xs(500, level="n")
    return (
        f"*{name}* has a smaller RMSE than *{other}* in {int((ratio < 1).sum())} of {len(ratio)} comparisons, "
        f"{ratio.min():.2f} to {ratio.max():.2f} times theirs; at N = 500 its fit takes {time_.min():.2f} to "
        f"{time_.max():.2f} times as long."
    )


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
