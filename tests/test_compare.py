"""`kfx compare`: which rows are better, which are worse beyond chance, and the same table in every format."""

from __future__ import annotations

import io
import json
import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import ttest_ind, ttest_rel

import kfx as package
from kfx.config.metrics import METRICS, known_better
from kfx.evaluation import scoring
from kfx.evaluation.rollout import Rollout
from kfx.jobs.sweep import COLUMNS
from kfx.numerics.formatting import spread
from kfx.numerics.significance import p_of_being_worse
from kfx.plots import comparison as pictures
from kfx.record.comparison import KEPT, Compared, table
from kfx.report.compared import shown_table
from kfx.report.table import Table, latex, markdown, screen
from tests.plugins import isolated

TINY = ["dataset.n_train=30", "dataset.n_test=20", "sampler.batch_size=10", "optimizer=none", "figures=false"]
TINY += ["evaluation.batches=0", "device.precision_check=off"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Three seeds of two kernels, on two numbers of points, once for all tests."""
    folder = tmp_path_factory.mktemp("swept") / "s"
    words = ["kernel.sigma=1,50", "seed=0,1,2", "evaluation.n_interpolation=[15,30]", f"hydra.sweep.dir='{folder}'"]
    package.sweep([*TINY, *words], progress=False)
    return folder


@pytest.fixture
def sweep(swept, in_folder):
    return shutil.copytree(swept, in_folder / "s")


def compared(metric, rows, better=None, **more):
    """The table of rows by name, each a value for each seed."""
    runs = [
        Compared(
            Path(name),
            {"who": name},
            seed,
            {"value": value, "reached": value, **dict.fromkeys(KEPT, 0), **more},
        )
        for name, values in rows.items()
        for seed, value in values.items()
    ]
    return table(runs, ["who"], metric, False, known_better(metric, {}) if better is None else better)


# ---- which values are better


@pytest.mark.parametrize("metric", METRICS)
def test_the_best_row_comes_first_and_is_marked(metric):
    better = METRICS[metric].better
    far, near = {"larger": (1.0, 3.0), "smaller": (3.0, 1.0)}.get(better, (0.99, 0.951))
    frame = compared(
        metric, {"far": {i: far + i / 1e4 for i in range(4)}, "near": {i: near - i / 9e4 for i in range(4)}}
    )
    if better is None:
        assert frame[f"{metric}_p"].isna().all(), "nothing is better"
    else:
        assert frame["who"].tolist() == ["near", "far"]
        assert frame[f"{metric}_p"][0] == 1
        assert frame[f"{metric}_p"][1] < 0.01


def test_every_metric_says_which_values_are_better():
    two = np.zeros((1, 2))
    labelled = SimpleNamespace(labels_test=np.zeros(1), energy=None, series=None, reduction=None, y_test=two)
    several = SimpleNamespace(labels_test=None, energy=None, series=None, reduction=None, y_test=two)
    series = SimpleNamespace(exponent=1.0)
    values = SimpleNamespace(labels_test=None, energy=1, series=series, reduction=1, targets=two, y_test=two)
    names, rollout = {"rmse", "r2"}, Rollout(1, None, 0.4, attractor_steps=100)
    for solver in ("cholesky", *scoring._OF_SOLVERS):
        asked = dict.fromkeys(("variance", "train_error", "rho", "head", "calibration"), True)
        names |= {*scoring.metric_names(labelled, scoring.Scoring([], solver=solver, **asked))}
        names |= {*scoring.metric_names(several, scoring.Scoring([], solver=solver))}
        names |= {*scoring.metric_names(values, scoring.Scoring([], solver=solver, rollout=rollout, **asked), True)}
    assert {name.partition(".")[0] for name in names} <= METRICS.keys()
    assert "mse.1" in names
    assert len(names) > 30


PLUGIN = """
import numpy as np
from kfx.options import metric

@metric("right_share", better="larger")
def right_share(prediction, data):
    return np.mean(np.abs(prediction - data.y_test) < 50)
"""


def test_a_metric_of_a_plugin_states_its_direction(kfx, in_folder, own_registry):
    (in_folder / "share.py").write_text(PLUGIN)
    for sigma in (0.1, 20):
        assert kfx("run", *TINY, f"kernel.sigma={sigma}", f"hydra.run.dir=s/{sigma}", "--plugin", "share.py")[0] == 0
    run = package.load_run("s/20")
    assert run.metrics["better"]["right_share"] == "larger"
    rows = pd.read_csv("s/20/predictions.csv").query("kernel == 'trained'")
    value = run.evaluation.query("metric == 'right_share' and kernel == 'trained'")["value"].item()
    assert value == pytest.approx(np.mean((rows["prediction"] - rows["target"]).abs() < 50))
    with isolated():
        METRICS.pop("right_share")  # as in another process
        code, _, err = kfx("compare", "s", "--by", "kernel.sigma", "--metric", "right_share", "--csv", "t.csv")
        assert code == 0, err
    found = pd.read_csv("t.csv")
    assert found["right_share"].is_monotonic_decreasing
    assert found["kernel.sigma"][0] == 20


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('@metric("mse", better="larger")', "mse: is there already"),
        ('@metric("new", better="more")', "better: larger, smaller, a number or None; got more"),
        ('@metric("a b", better=None)', "a b: expected a name"),
    ],
)
def test_a_wrong_metric_is_a_line(kfx, in_folder, own_registry, line, told):
    (in_folder / "wrong.py").write_text(f"from kfx.options import metric\n{line}\ndef f(p, d):\n    return 1\n")
    code, _, err = kfx("run", *TINY, "--plugin", "wrong.py")
    assert (code, told in err, len(err.splitlines())) == (2, True, 1)


@pytest.mark.parametrize(
    ("body", "told"), [("return 1 / 0", "ZeroDivisionError"), ("return 'a'", "metric new: expected a number, got 'a'")]
)
def test_a_metric_that_fails_is_the_reason_of_the_run(kfx, in_folder, own_registry, body, told):
    text = f'from kfx.options import metric\n@metric("new", better=None)\ndef f(p, d):\n    {body}\n'
    (in_folder / "wrong.py").write_text(text)
    code, _, err = kfx("run", *TINY, "--plugin", "wrong.py", "hydra.run.dir=r")
    assert (code, "Traceback" in err) == (1 if "1 / 0" in body else 2, False)
    assert told in json.loads(Path("r/metrics.json").read_text())["reason"]


# ---- what is worse beyond chance


def test_seeds_that_match_are_compared_in_pairs():
    rng = np.random.default_rng(0)
    hard = 100 * rng.normal(size=5)
    best, worse = hard, hard + np.array([1, 2, 1.5, 3, 2])
    seeds = list(range(5))
    assert p_of_being_worse([best, worse], [seeds, seeds])[1] == pytest.approx(
        ttest_rel(worse, best, alternative="greater").pvalue
    )
    assert p_of_being_worse([best, worse], [seeds, seeds])[1] < 0.05 < 0.4 < ttest_ind(worse, best).pvalue
    shuffled = [4, 2, 0, 1, 3]
    assert p_of_being_worse([best, worse[shuffled]], [seeds, shuffled]) == p_of_being_worse(
        [best, worse], [seeds, seeds]
    )
    welch = ttest_ind(worse, best, equal_var=False, alternative="greater").pvalue
    for others in ([10, 11, 12, 13, 14], [0, 1, 12, 13, 14], [0, 0, 1, 2, 3]):
        assert p_of_being_worse([best, worse], [seeds, others])[1] == pytest.approx(welch)
    some = p_of_being_worse([best, worse[:3]], [seeds, seeds[:3]])[1]
    assert some == pytest.approx(ttest_rel(worse[:3], best[:3], alternative="greater").pvalue)


def measured(sweep, metric, values):
    """Let the runs of a sweep have these values of a metric, by kernel and then by seed."""
    for name, value in enumerate(np.ravel(values).tolist()):
        path = sweep / str(name) / "metrics.json"
        metrics = json.loads(path.read_text())
        metrics.pop("checksums", None)
        rows = [row for row in metrics["evaluation"] if row["metric"] == "mse"]
        metrics["evaluation"] = [{**row, "metric": metric, "mean": value} for row in rows]
        path.write_text(json.dumps(metrics))


@pytest.mark.parametrize(
    ("metric", "sign"), [("mse", 1), ("r2", -1), ("valid_time", -1), ("valid_lyapunov_times", -1), ("nlpd", 1)]
)
def test_the_command_puts_the_best_row_first_and_compares_its_seeds_in_pairs(kfx, sweep, metric, sign):
    worse, seeds = sign * np.array([1.0, 1.5, 2.0]), np.array([3.0, 90.0, -40.0])
    measured(sweep, metric, [seeds + worse, seeds])
    code, _, err = kfx("compare", "s", "--by", "kernel.sigma", "--metric", metric, "--csv", "t.csv")
    assert code == 0, err
    found = pd.read_csv("t.csv")
    assert found["kernel.sigma"].tolist() == [50, 1]
    assert found[f"{metric}_p"].tolist()[1] == pytest.approx(
        ttest_rel(abs(worse), 0 * worse, alternative="greater").pvalue
    )
    shutil.rmtree("s/2"), shutil.rmtree("s/5")
    assert kfx("compare", "s", "--by", "kernel.sigma", "--metric", metric, "--csv", "t.csv")[0] == 0
    assert pd.read_csv("t.csv")[f"{metric}_p"].isna().all(), "two seeds are no test"


def test_two_seeds_are_no_test():
    frame = compared("mse", {"a": {0: 1.0, 1: 1.1}, "b": {0: 5.0, 1: 5.1}})
    assert frame["mse_p"].isna().all()
    frame.attrs |= {"other_objective": False}
    assert "*" not in str(shown_table(frame.assign(**ABSENT), ["who"], "mse", "sd").marks)
    mixed = compared("mse", {"a": {0: 1.0, 1: 1.1, 2: 1.2}, "b": {0: 5.0, 1: 5.1}, "c": {0: 6.0, 1: 6.2, 2: 6.1}})
    assert shown_table(mixed.assign(**ABSENT), ["who"], "mse", "sd").marks == ["*", "?", ""], "b cannot be tested"


ABSENT = {
    f"{name}{of}": math.nan
    for name in ("rho_initial", "rho_final", "seconds", "kernel_evaluations")
    for of in ("", "_sd", "_se")
}
ABSENT |= {f"objective_{when}{of}": math.nan for when in ("initial", "final") for of in ("", "_sd", "_se")}


def test_the_same_values_are_not_worse():
    same = p_of_being_worse([np.array([1.0, 2, 3])] * 2, [[0, 1, 2]] * 2)
    assert same == [1.0, 1.0]
    level = p_of_being_worse([np.ones(3), np.full(3, 2.0), np.array([1, math.nan, 1])], [[0, 1, 2]] * 3)
    assert level[:2] == [1.0, 0.0]
    assert math.isnan(level[2])


# ---- the table


@pytest.mark.parametrize(
    ("mean", "deviation", "shown"),
    [
        (0.96, 0.01, "0.960 ± 0.010"),
        (0.8379, 0.0615, "0.838 ± 0.061"),
        (3180.4, 152.3, "3180 ± 152"),
        (1.31e-5, 2.3e-6, "1.31e-05 ± 2.3e-06"),
        (-1.31e-5, 2.3e-5, "-1.3e-05 ± 2.3e-05"),
        (0.0, 1e-5, "0 ± 1.0e-05"),
        (123456, 20, "1.23456e+05 ± 2.0e+01"),
        (0.5, 1e-12, "0.5000 ± 1.0e-12"),
        (0.0996, 0.0996, "0.10 ± 0.10"),
        (0.95, 0.0, "0.9500"),
        (0.95, math.nan, "0.9500"),
    ],
)
def test_numbers_are_rounded_by_their_deviation(mean, deviation, shown):
    assert spread(mean, deviation) == shown


def test_a_setting_that_is_null_or_absent_is_a_row(kfx, in_folder):
    words = ["seed=0,1", "optimizer=sgd,nesterov", "sampler.batch_size=null,20", "hydra.sweep.dir=t"]
    package.sweep([*TINY, *words], progress=False)
    by = ["optimizer", "optimizer.momentum", "sampler.batch_size"]
    frame = package.compare("t", by=by)
    rows = {tuple(map(str, row)) for row in frame[by].itertuples(index=False)}
    assert rows == {("sgd", "-", "null"), ("sgd", "-", "20"), ("nesterov", "0.9", "null"), ("nesterov", "0.9", "20")}
    assert frame["n"].tolist() == [2, 2, 2, 2]
    code, out, err = kfx("compare", "t", "--by", ",".join(by), "--curve", "c.png", "--figure", "f.png")
    assert (code, err) == (0, "")
    code, out, err = kfx("compare", "t", "--by", "kernel.trainable", "--mix")
    assert (code, err) == (0, "")
    assert "null" in out
    assert kfx("compare", "t", "--by", "")[::2] == (2, "kfx: --by: expected one or more config keys\n")


def test_rows_of_different_targets_do_not_compare(kfx, in_folder):
    x = np.random.default_rng(0).normal(size=(40, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "u": x[:, 0] ** 2, "v": x[:, 1]}).to_csv("t.csv", index=False)
    for kernel, target in (("rbf", "u"), ("matern", "v")):
        words = ["dataset=table", "dataset.path=t.csv", "dataset.features=[a,b]", f"dataset.target={target}"]
        words += [f"kernel={kernel}", "optimizer.iterations=2", "figures=false", f"hydra.run.dir=s/{target}"]
        assert kfx("run", *words)[0] == 0
    code, _, err = kfx("compare", "s", "--by", "kernel")
    assert code == 2
    assert "--by kernel.name: rows differ in dataset.target (u, v), whose numbers do not compare" in err
    assert kfx("compare", "s", "--by", "kernel", "--mix")[0] == 0
    assert kfx("compare", "s", "--by", "kernel,dataset.target")[0] == 0
    assert "--by seed: rows are means over seeds" in kfx("compare", "s", "--by", "seed")[2]


@pytest.mark.parametrize("width", [60, 90, 100, 120, 140, 180])
def test_no_number_or_name_is_cut_on_a_narrow_terminal(width):
    heads = ["optimizer", "n#", "accuracy#", "fall back", "training reached#", "rho before#", "fit seconds#", "p#"]
    row = ["adam", "3", "0.909 ± 0.0085", "one length kept 2/3", "0.909 ± 0.0085", "0.529 ± 0.013", "12.3 ± 0.4", "0.5"]
    other = ["finite_difference", "3", "0.7 ± 0.021", "", "0.758 ± 0.012", "0.498 ± 0.011", "2.3 ± 0.4", "0.012"]
    to = Console(width=width, file=io.StringIO(), markup=False, highlight=False)
    to.print(screen(Table(heads, [row, other], marks=["*", ""], marked=2), to.width), crop=False)
    lines = to.file.getvalue().splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= max(width, 90), "not wider than its words need"
    words = {word for line in lines for word in line.replace("│", " ").replace("┃", " ").split()}
    assert {word for cell in (*row, *other[1:]) for word in cell.split()} <= words


def test_a_regression_needs_no_metric(kfx, sweep):
    code, out, err = kfx("compare", "s", "--by", "kernel.sigma", "--csv", "t.csv")
    assert (code, err) == (0, "")
    assert "mse: mean ± sd over seeds" in " ".join(out.split())
    frame = package.compare("s", by="kernel.sigma")
    pd.testing.assert_frame_equal(frame, pd.read_csv("t.csv"), check_exact=False, rtol=1e-12)
    assert frame["mse"].is_monotonic_increasing


def test_summaries_have_rmse_and_r2(sweep):
    run = package.load_run(next(sweep.glob("*/metrics.json")).parent)
    rows = pd.read_csv(run.directory / "predictions.csv").query("kernel == 'trained'")
    error, spread_of = rows["prediction"] - rows["target"], rows["target"] - rows["target"].mean()
    found = {
        row["metric"]: row["mean"]
        for row in run.metrics["evaluation"]
        if (row["kernel"], row["n_interpolation"]) == ("trained", 30)
    }
    assert found["rmse"] == pytest.approx((error**2).mean() ** 0.5)
    assert found["r2"] == pytest.approx(1 - (error**2).sum() / (spread_of**2).sum())
    summary = "\n".join(run.summary())
    assert f"rmse {found['rmse']:.4f}" in summary
    assert f"R² {found['r2']:.4f}" in summary


@pytest.mark.parametrize("metric", ["mse", "r2", "jitter", "effective_regularization"])
@pytest.mark.parametrize("sizes", [[15, 30], [30]])
def test_any_metric_is_drawn_against_the_number_of_points(kfx, sweep, metric, sizes):
    for path in sweep.glob("*/metrics.json"):
        metrics = json.loads(path.read_text())
        metrics.pop("checksums", None)
        metrics["evaluation"] = [row for row in metrics["evaluation"] if row["n_interpolation"] in sizes]
        for row in metrics["evaluation"]:
            row["mean"] = None if metric == "effective_regularization" and path.parent.name == "0" else row["mean"]
        path.write_text(json.dumps(metrics))
    out = ("--curve", "c.png", "--figure", "f.png")
    code, _, err = kfx("compare", "s", "--by", "kernel.sigma", "--metric", metric, *out)
    assert (code, err) == (0, "")
    assert Path("c.png").stat().st_size > 1000


# ---- every value is text


HOSTILE = r"$\input{secret.tex}$ R&D #1 100% a_b ~^ {x} \ [c] *d* <b> | `e` " + "\n\n% f"
SPECIAL = r"&%$#_{}~^\<>|"


def test_values_are_text_in_every_format():
    content = Table(
        [HOSTILE, "m#"], [[HOSTILE, "-1.5e-05 ± 2.0e-06"], ["[first]", "1"]], HOSTILE, ["*", ""], 1, HOSTILE
    )
    tex = latex(content)
    assert r"\$\textbackslash{}input\{secret.tex\}\$ R\&D \#1 100\% a\_b" in tex
    assert r"\textbf{$-$1.5$\times 10^{-5}$ $\pm$ 2.0$\times 10^{-6}$}" in tex
    for line in tex.splitlines():
        assert line.startswith(("%", "\\", "{[}", r"\$")), (
            "no line break of a value ends a comment, a row or begins one"
        )
        assert line.startswith("%") or line.count(r"\\") == line.endswith(r"\\")
    lines = markdown(content).splitlines()
    assert len(lines) == 8
    assert [line.replace(r"\|", "").count("|") for line in lines[-4:]] == [3] * 4
    assert r"\$\\input{secret.tex}\$ R\&D #1 100% a\_b \~^ {x} \\ \[c\] \*d\* \<b\> \| \`e\` % f" in lines[-2]
    sweep = package.Sweep(Path("<b>s</b>"), pd.DataFrame([dict.fromkeys(COLUMNS, HOSTILE)]))
    assert "<b>" not in sweep._repr_html_()
    frame = compared("mse", {HOSTILE: {0: 1.0, 1: 2.0}, "$b$": {0: 2.0, 1: 2.5}}).assign(n_interpolation=5)
    frame.attrs["title"] = "$\\input{x}$"
    for drawn in (pictures.by_row(frame, ["who"], "mse", "sd"), pictures.curve(frame, ["who"], "mse", "sd")):
        drawn.draw_without_rendering()  # no label is a formula


def test_a_value_of_a_run_is_text(kfx, in_folder):
    x = np.arange(30)
    pd.DataFrame({r"$\frac$": x % 5, "b": x % 7, r"$\input{x}$": np.sin(x)}).to_csv("t.csv", index=False)
    words = [
        "dataset=table",
        "dataset.path=t.csv",
        r"dataset.target='$\input{x}$'",
        "kernel=rbf",
        "kernel.ard=true",
        "hydra.run.dir=r",
    ]
    code, _, err = kfx("run", *words, *TINY[3:])
    assert code == 0, err
    code, _, err = kfx(
        "compare", "r", "--by", "dataset.target", "--metric", "mse", "--latex", "t.tex", "--figure", "f.png"
    )
    assert (code, err) == (0, "")
    assert "\\input{" not in Path("t.tex").read_text()
    code, _, err = kfx("plot", "r", "--only", "lengths")
    assert (code, err) == (0, "")


# ---- where the initial kernel was kept


def test_the_table_says_where_the_initial_kernel_was_kept(kfx, in_folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.sin(x[:, 0]) + 0.1 * x[:, 1]).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "optimizer.learning_rate=4"]
    words += [
        "optimizer.iterations=2",
        "figures=false",
        "device.precision_check=off",
        "evaluation.batches=2",
        "kernel.ard=false",
    ]
    for seed in range(3):
        assert kfx("run", *words, f"seed={seed}", f"hydra.run.dir=s/{seed}")[0] == 0
    assert kfx("run", *words, "seed=0", "optimizer.fall_back=false", "hydra.run.dir=trained")[0] == 0
    code, out, err = kfx("compare", "s", "--by", "optimizer", "--metric", "mse", "--csv", "t.csv", "--latex", "t.tex")
    assert (code, err) == (0, "")
    assert "initial kept 3/3" in out
    runs = [package.load_run(f"s/{seed}") for seed in range(3)]
    found = {**dict.fromkeys(KEPT, 0), "initial_kept": 1, "fits": 1, "kept": ["initial"]}
    assert [run.metrics["fall_back"] for run in runs] == [found] * 3
    reached = runs[0].evaluation.query("kernel == 'rejected' and metric == 'mse'")["value"].item()
    unkept = package.load_run("trained").evaluation.query("kernel == 'trained' and metric == 'mse'")["value"].item()
    assert reached == pytest.approx(unkept, rel=1e-6)
    assert "initial kept 3/3" in Path("t.tex").read_text()
    row = pd.read_csv("t.csv").iloc[0]
    assert (row["initial_kept"], row["fits"]) == (3, 3)
    assert row["mse_reached"] > row["mse"]
    code, out, _ = kfx("compare", "s", "--by", "optimizer", "--kernel", "initial")
    assert (code, "initial kept" in out) == (0, False)
