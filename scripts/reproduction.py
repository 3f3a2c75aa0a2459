"""Collect what runs measured for numbers that papers printed, and write REPRODUCTION.md from what was collected.

python scripts/reproduction.py add RUN …      a table of each completed run into runs/reproduction/, to be committed
python scripts/reproduction.py page           REPRODUCTION.md from these tables
python scripts/reproduction.py check          whether the page is what the tables give

A run adds one file, named by its experiment, what was typed and its seed: a row for each printed number, and, where a
paper shows only a picture, a row for each quantity of it that the run measured.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from kfx import load_run
from kfx.config.check import check
from kfx.config.compose import composed, without_hydra
from kfx.running.published import applicable, measured_as, typed_in

ROOT = Path(__file__).parent.parent
TABLES = ROOT / "runs" / "reproduction"
PAGE = ROOT / "REPRODUCTION.md"
COLUMNS = (
    *("experiment", "overrides", "seed", "source", "metric", "kernel", "n_interpolation", "statistic"),
    *("published", "measured", "iterations", "seconds", "kfx", "machine"),
)
SHOWN = {
    "rho": "ρ",
    "mse": "L² error, mean squared",
    "energy_error": "energy error",
    "error": "test error",
    "head_accuracy": "test accuracy",
    "head_log_likelihood": "test log-likelihood",
    "head_train_accuracy": "training accuracy",
    "head_train_log_likelihood": "training log-likelihood",
}
SEEDS_OF_STANDARD_ERRORS = 8
"""Milsom et al. 2023, who alone print standard errors, have eight seeds."""
PICTURES = {  # of experiments whose numbers a paper shows as a curve: what the run has of them
    "owhadi_yoo/greens_recovery": "Owhadi & Yoo 2019, Fig. 6",
    "owhadi_yoo/greens_levels": "Owhadi & Yoo 2019, Fig. 5.4, 5.5",
    "owhadi_yoo/greens_random": "Owhadi & Yoo 2019, Fig. 5.6, 5.7",
}
CURVES = {  # of experiments whose errors at every N_I a paper shows as a picture
    "owhadi_yoo/mnist_network": "Owhadi & Yoo 2019, Fig. 25",
    "owhadi_yoo/fashion_network": "Owhadi & Yoo 2019, Fig. 30",
}
REMARKS = {
    "milsom/mnist_16": (
        "The paper trains for 17 625 iterations; where fewer stand in the command, the numbers are of a machine on its",
        "way. Statistics of `batch` normalization are those of training images throughout: the public scripts take",
        "those of the batch of test images. ρ of each block's kernel stays near one half (0.477 at the top after 2000",
        "iterations): the variance that inducing points do not explain stands on the diagonal, and acts as a large λ.",
    ),
    "owhadi_yoo/greens_recovery": (
        "As in the paper's e(b), errors are those of interpolating from half of the nodes, over all of them; the other",
        "half of the training nodes, whose u drove ρ, is among these. From all 128 nodes b = 1 predicts better: what",
        "was learned is a conductivity that explains the training nodes.",
    ),
    "owhadi_yoo/mnist_network": (
        "The rows of Tables 5 and 6 are over iterations 9901 to 10 000, those of Table 4 and Fig. 25 of the last one.",
        "From 600 points on the losses stand in the paper's order, e₂ before ρ before cross-entropy (its head is",
        "beside it). The network is from a description, Adam's rate and λ are kfx's own: which of them accounts for",
        "what differs is not known.",
    ),
    "owhadi_yoo/greens_levels": (
        "With the true conductivity ρ falls as 2^{−2k}, and is the error in the energy norm.",
    ),
}
NOT_COVERED = (
    "- Owhadi & Yoo 2019, Remark 5.1, Fig. 7: gamblets in two dimensions; `greens_function` is of an interval. The",
    "  text says 2⁸ interior points and 2^k − 1 nodes a level: kfx has 2⁸ elements, so 255 interior nodes.",
    "- Owhadi & Yoo 2019, Figs. 23 and 28, the networks of §10, are pictures: `kernel.architecture=mnist` has the",
    "  sizes of a public description of the first, `fashion` is a usual network in place of the second.",
)


def rows_of(directory: Path) -> Iterator[dict[str, object]]:
    """The rows that a completed run adds."""
    run = load_run(directory)
    typed = typed_in(directory)
    experiment = next(word.split("=", 1)[1] for word in typed if word.startswith("+experiment="))
    own = sorted(
        word for word in typed if not word.startswith(("+experiment=", "seed=", "hydra.", "device.threads", "figures="))
    )
    config = check(without_hydra(composed([f"+experiment={experiment}", *own])))  # with the numbers as they are set now
    here = json.loads((directory / "environment.json").read_text())
    common = {
        "experiment": experiment,
        "overrides": " ".join(own),
        "seed": run.config.seed,
        "iterations": len(run.trace),
        "seconds": round(float(run.trace["seconds"].iloc[-1])),
        "kfx": here["packages"]["kfx"] if "kfx" in here.get("packages", {}) else here.get("kfx", ""),
        "machine": f"{here['device']}, {here['threads_of_fit']} threads",
    }
    for printed in applicable(config, typed):
        yield common | {
            "source": printed.source,
            "metric": printed.metric,
            "kernel": printed.kernel,
            "n_interpolation": printed.n_interpolation,
            "statistic": printed.statistic,
            "published": printed.value,
            "measured": measured_as(printed, run.metrics, directory),
        }
    if experiment in CURVES:
        nothing = {"source": CURVES[experiment], "statistic": "mean", "published": "", "kernel": "trained"}
        for row in run.metrics["evaluation"]:
            if row["kernel"] == "trained" and row["metric"] == "accuracy":
                place = {"metric": "error at the end", "n_interpolation": row["n_interpolation"]}
                yield common | nothing | place | {"measured": round(1 - row["mean"], 12)}
    if experiment in PICTURES:
        nothing = {"source": PICTURES[experiment], "statistic": "mean", "published": ""}
        for kernel, name in (("initial", "initial"), ("trained", "trained")):
            value = run.metrics["held_out"]["rho"][name]["mean"]
            place = {"metric": "rho", "kernel": kernel, "n_interpolation": ""}
            yield common | nothing | place | {"measured": value}
        for row in run.metrics["evaluation"]:
            if row["kernel"] in ("initial", "trained") and row["metric"] in ("rho", "mse", "energy_error"):
                place = {key: row[key] for key in ("metric", "kernel", "n_interpolation")}
                yield common | nothing | place | {"measured": row["mean"]}


def add(directories: list[Path]) -> None:
    """Write the table of each run."""
    TABLES.mkdir(parents=True, exist_ok=True)
    for directory in directories:
        rows = list(rows_of(directory))
        if not rows:
            raise SystemExit(f"{directory}: measured none of the numbers that are printed for it")
        first = rows[0]
        name = hashlib.sha256(f"{first['overrides']}".encode()).hexdigest()[:8]
        path = TABLES / f"{str(first['experiment']).replace('/', '-')}-{name}-{first['seed']}.csv"
        with path.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        print(path.relative_to(ROOT))


def verdict(published: float, measured: np.ndarray, sd: float | None) -> str:
    """By the rule that the page states. sd: the paper's own."""
    if len(measured) >= 3:
        return "reproduced" if abs(measured.mean() - published) <= 2 * measured.std(ddof=1) else "differs"
    if sd is None:
        return "cannot be decided: one seed, and no deviation printed"
    return "reproduced" if abs(measured.mean() - published) <= 2 * sd else "differs"


def of_numbers(own: list[dict[str, str]]) -> list[str]:
    """A row for each printed number that was measured."""
    lines = ["| | N_I | published | measured | verdict |", "|---|---|---|---|---|"]
    places = list(dict.fromkeys(tuple(row[k] for k in COLUMNS[3:9]) for row in own))
    seeds = {"sd": 1, "se": SEEDS_OF_STANDARD_ERRORS}
    deviations = {p[:4]: float(p[5]) * np.sqrt(seeds[p[4]]) for p in places if p[4] in seeds and p[5]}
    for place in places:
        source, metric, kernel, size, statistic, published = place
        values = measured(row for row in own if tuple(row[k] for k in COLUMNS[3:9]) == place)
        if not len(values):  # a deviation over runs, of one run
            continue
        what = SHOWN.get(metric, metric) + ("" if statistic == "mean" else f", {statistic}")
        what += "" if kernel == "trained" else f", {kernel} kernel"
        said = verdict(float(published), values, deviations.get(place[:4])) if published and statistic == "mean" else ""
        where = source.split(", ", 1)[-1]
        lines.append(f"| {what} ({where}) | {size} | {published} | {spread(values)} | {said} |")
    return lines


def of_pictures(own: list[dict[str, str]]) -> list[str]:
    """A row for each N_I, before → after where something was trained."""
    metrics = list(dict.fromkeys(row["metric"] for row in own))
    lines = [f"| N_I | {' | '.join(SHOWN[m] for m in metrics)} |", f"|---|{'---|' * len(metrics)}"]
    for size in dict.fromkeys(row["n_interpolation"] for row in own):
        cells = []
        for metric in metrics:
            of = [row for row in own if row["metric"] == metric and row["n_interpolation"] == size]
            pair = [measured(row for row in of if row["kernel"] == kernel) for kernel in ("initial", "trained")]
            shown = [spread(values) for values in pair if len(values)]
            cells.append(" → ".join(dict.fromkeys(shown)) + paired(*pair))
        lines.append(f"| {size or 'held-out batches'} | {' | '.join(cells)} |")
    return lines


def paired(initial: np.ndarray, trained: np.ndarray) -> str:
    """By what factor a quantity falls: the geometric mean over seeds, and in how many."""
    if len(initial) < 3 or len(initial) != len(trained) or not (trained > 0).all():
        return ""
    factors = initial / trained
    fallen = f"falls in {int((factors > 1).sum())} of {len(factors)}"
    return f"; by {np.exp(np.log(factors).mean()):.3g} ({factors.min():.2g} to {factors.max():.2g}), {fallen}"


def measured(rows: Iterable[dict[str, str]]) -> np.ndarray:
    return np.array([float(row["measured"]) for row in rows if row["measured"]])


def spread(values: np.ndarray) -> str:
    return f"{values.mean():.4g}" + (f" ± {values.std(ddof=1):.2g}" if len(values) > 1 else "")


def page() -> str:
    """REPRODUCTION.md."""
    rows: list[dict[str, str]] = []
    for path in sorted(TABLES.glob("*.csv")):
        with path.open(newline="") as stream:
            rows += list(csv.DictReader(stream))
    lines = [
        "# Published numbers beside measured ones",
        "",
        "Written by `python scripts/reproduction.py page` from the tables in `runs/reproduction/`, one a run.",
        "*Reproduced*: over three seeds or more the mean is within two of their standard deviations of the published",
        "number; with fewer, within two of the paper's own. *Differs*: it is not. Of pictures, where a paper prints no",
        "number, what was measured stands by itself.",
    ]
    experiments = list(dict.fromkeys((row["experiment"], row["overrides"]) for row in rows))
    for experiment, overrides in experiments:
        own = [row for row in rows if (row["experiment"], row["overrides"]) == (experiment, overrides)]
        seeds = sorted({int(row["seed"]) for row in own})
        seconds = np.mean([float(row["seconds"]) for row in own])
        words = f" {overrides}" if overrides else ""
        lines += [
            "",
            f"## {experiment}{words}",
            "",
            f"`kfx run +experiment={experiment}{words}` · {own[0]['iterations']} iterations, {seconds:.0f} s · "
            f"{len(seeds)} seed{'s' if len(seeds) > 1 else ''} · {own[0]['machine']} · "
            f"{own[0]['source'].split(',')[0]}",
            "",
            *([*REMARKS[experiment], ""] if experiment in REMARKS else []),
            *(of_numbers(own) if any(row["published"] for row in own) else of_pictures(own)),
        ]
    return "\n".join([*lines, "", "## Not covered", "", *NOT_COVERED, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("add", "page", "check"))
    parser.add_argument("runs", nargs="*", type=Path)
    arguments = parser.parse_args()
    if arguments.action == "add":
        add(arguments.runs)
    elif arguments.action == "page":
        PAGE.write_text(page())
    elif PAGE.read_text() != page():
        sys.exit("REPRODUCTION.md is not what runs/reproduction/ gives: python scripts/reproduction.py page")


if __name__ == "__main__":
    main()
