"""Pictures: a line a fold, statistics over folds, what is informative for each optimizer, and colours told apart."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb

from kfx import load_run
from kfx.plots import evaluation, flow, landscape, trace
from kfx.plots.style import COLOURS, MARKERS, running

FOLDS = ["dataset=diabetes", "dataset.n_test=0", "evaluation=k_fold", "evaluation.folds=3", "optimizer.iterations=12"]
QUICK = ["device.precision_check=off", "sampler.batch_size=30"]


def test_folds_are_not_joined(kfx):
    words = ["objective=loo", "evaluation.random_kernels=1", "figures=false", "hydra.run.dir=r"]
    assert kfx("run", *FOLDS, *QUICK, *words)[0] == 0
    run = load_run("r")
    picture = trace.objective_over_iterations(run)
    assert [panel.get_ylabel() for panel in picture.axes] == ["loo", r"$\rho$"], "what is minimised comes first"
    for panel in picture.axes:
        assert [line.get_label() for line in panel.lines] == ["fold 0", "fold 1", "fold 2"]
        assert all(line.get_xdata().tolist() == list(range(12)) for line in panel.lines)
    (axes,) = trace.parameters_over_iterations(run).axes
    assert len(axes.lines) == 3
    (axes,) = evaluation.before_and_after(run).axes
    values = run.evaluation.query("metric == 'mse'").pivot(index="repeat", columns="kernel", values="value")
    of_folds, means = (line for line in axes.lines if line.get_marker() == "o")
    assert of_folds.get_label() == "a fold or repeat"
    np.testing.assert_allclose(of_folds.get_ydata(), values[["initial", "trained"]].to_numpy().ravel())
    np.testing.assert_allclose(means.get_ydata(orig=False), [values["initial"].mean(), values["trained"].mean()])
    (bars,) = axes.collections
    np.testing.assert_allclose(
        [np.ptp(bar[:, 1]) / 2 for bar in bars.get_segments()], values.std()[["initial", "trained"]]
    )
    assert {line.get_linestyle() for line in axes.lines} == {"None"}, "two kernels are two points"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["initial kernel", "trained kernel"]


@pytest.mark.slow
def test_the_axis_of_an_accuracy_ends_at_one(kfx):
    words = ["dataset=swiss_roll", "optimizer.iterations=2", "figures=false", "device.precision_check=off"]
    for more in (["evaluation.random_kernels=1"], ["evaluation.n_interpolation=[20,100]", "follow.every=0"]):
        assert kfx("run", *words, *more, f"hydra.run.dir=r{len(more)}")[0] == 0
        run = load_run(f"r{len(more)}")
        assert run.evaluation.query("metric == 'accuracy'")["value"].max() == 1
        (axes,) = evaluation.before_and_after(run).axes
        assert axes.get_ylim()[1] == 1
        marked = [line for line in axes.lines if line.get_marker() in ("o", "s")]
        assert marked
        assert not any(line.get_clip_on() for line in marked), "a mark at 1 is drawn whole"


def test_folds_are_counted_in_whole_iterations_and_share_a_curve_of_errors(kfx):
    words = ["dataset=diabetes", "dataset.n_test=0", "evaluation=k_fold", "evaluation.folds=3", "follow.every=1"]
    assert kfx("run", *words, *QUICK, "optimizer.iterations=3", "figures=false", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    pictures = [trace.objective_over_iterations(run), trace.parameters_over_iterations(run), flow.errors_of_fit(run)]
    for picture in pictures:
        assert all(tick == round(tick) for tick in picture.axes[0].get_xticks())
    (curve,) = pictures[-1].axes[0].lines
    assert curve.get_label() == "294 to 295 points"
    measured = pd.read_csv("r/follow.csv").query("metric == 'mse'").groupby("iteration")["value"].mean()
    np.testing.assert_allclose(curve.get_ydata(), measured)


def test_random_kernels_are_a_band(kfx):
    words = ["evaluation.n_interpolation=[30,60]", "evaluation.random_kernels=3", "optimizer.iterations=2"]
    assert kfx("run", *words, *QUICK, "figures=false", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    (axes,) = evaluation.before_and_after(run).axes
    (band,) = [artist for artist in axes.collections if artist.get_label() == "3 random kernels"]
    drawn = band.get_paths()[0].vertices[:, 1]
    random = run.evaluation[run.evaluation["kernel"].str.startswith("random")].query("metric == 'mse'")["value"]
    np.testing.assert_allclose([drawn.min(), drawn.max()], [random.min(), random.max()])


def test_a_landscape_marks_its_minimum_and_a_grid_has_no_saw_tooth(kfx):
    words = ["optimizer=grid", "optimizer.bounds=[0.2,5]", "optimizer.points=8", "optimizer.iterations=24"]
    assert kfx("run", "dataset=digits", *words, *QUICK, "figures=false", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    axes = landscape.objective_over_parameter(run).axes[0]
    (star,) = [line for line in axes.lines if str(line.get_label()).startswith("smallest at")]
    means = run.trace.groupby("parameter.sigma")["objective"].mean()
    assert star.get_xdata()[0] == means.idxmin()
    assert axes.get_ylabel() == r"$\rho$"
    assert "mean of 3 batches" in [line.get_label() for line in axes.lines]
    (band,) = axes.collections
    assert band.get_label() == "± 1 sd over batches"
    assert trace.objective_over_iterations(run) is None
    assert trace.parameters_over_iterations(run) is None


@pytest.mark.slow
def test_the_least_of_a_landscape_has_failed_least():
    at = pd.Series([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
    assert landscape.place_of_least(pd.Series([0.1, np.nan, 0.4, 0.4, 0.2, 0.8]), at) == 2.0
    assert landscape.place_of_least(pd.Series([0.1, np.nan, 0.4, np.nan, np.nan, np.nan]), at) == 1.0


def test_a_landscape_of_one_batch_says_so_and_one_by_default_has_a_band(kfx):
    assert (
        kfx("run", "optimizer=grid", "optimizer.iterations=100", *QUICK, "figures=false", "hydra.run.dir=one")[0] == 0
    )
    axes = landscape.objective_over_parameter(load_run("one")).axes[0]
    assert axes.lines[0].get_label() == "one batch"
    words = ["objective=e2", "figures=false", "hydra.run.dir=usual"]
    assert kfx("run", "optimizer=grid", *QUICK, *words)[0] == 0
    axes = landscape.objective_over_parameter(load_run("usual")).axes[0]
    assert axes.lines[0].get_label() == "mean of 5 batches"
    assert len(axes.collections) == 1
    assert axes.get_ylabel() == "$e_2$"


@pytest.mark.slow
def test_the_precision_check_is_drawn_where_it_warned_or_when_asked(kfx, in_folder):
    words = ["optimizer.iterations=2", "sampler.batch_size=30", "figures=true", "device.precision_check=warn"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    path, picture = in_folder / "r/precision.json", in_folder / "r/figures/precision.png"
    assert path.is_file()
    assert not picture.is_file()
    assert kfx("plot", "r", "--only", "precision")[0] == 0
    assert picture.is_file()
    for bad, said in (("roh", "expected one of rho, parameters"), ("surrogate", "r has no data for it")):
        code, _, err = kfx("plot", "r", "--only", bad)
        assert (code, err.count("\n"), said in err) == (2, 1, True)
    picture.unlink()
    content = json.loads(path.read_text())
    for verdict in content["verdicts"]:
        verdict["keeps_promise"] = verdict["dtype"] != "float64"
    path.write_text(json.dumps(content))
    code, _, err = kfx("plot", "r")
    assert (code, "precision.json: is damaged, or has changed" in err) == (0, True)
    assert picture.is_file()


@pytest.mark.slow
def test_long_traces_are_a_median_with_its_band(kfx):
    words = ["optimizer.iterations=3200", "dataset.n_train=20", "sampler.batch_size=6", "device.precision_check=off"]
    assert kfx("run", *words, "figures=false", "hydra.run.dir=r")[0] == 0
    (axes,) = trace.objective_over_iterations(load_run("r")).axes
    assert [line.get_label() for line in axes.lines] == ["median of 160 batches"]
    assert [band.get_label() for band in axes.collections] == ["80 % of 160 batches"]
    median, low, high = running(np.arange(100.0), 11)
    assert median[50] == 50
    assert low[50] < 50 < high[50]


@pytest.mark.slow
def test_pictures_in_several_formats_and_anew(kfx, in_folder):
    words = ["optimizer.iterations=2", "device.precision_check=off", "hydra.run.dir=r"]
    assert kfx("run", *words, "figures=[png,pdf]")[0] == 0
    names = {path.name for path in (in_folder / "r/figures").iterdir()}
    assert {"rho.png", "rho.pdf"} <= names
    for path in (in_folder / "r/figures").iterdir():
        path.unlink()
    code, out, err = kfx("plot", "r", "nothing", "--format", "svg")
    assert (code, "kfx plot nothing: holds no run" in err) == (2, True)
    assert "r/figures/rho.svg" in out
    for bad in ("figures=[bmp]", "figures=3"):
        assert kfx("run", bad)[0] == 2
    assert kfx("plot", "r", "--format", "bmp")[0] == 2


# Viénot, Brettel & Mollon 1999, in linear RGB.
_DICHROMATS = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


@pytest.mark.parametrize("seen_by", _DICHROMATS)
def test_colours_are_told_apart(seen_by):
    """The first five, as far as most pictures go, by their distance in what a dichromat sees; markers differ too."""
    linear = [np.array(to_rgb(colour)) ** 2.2 for colour in COLOURS[:5]]
    seen = [np.clip(np.array(_DICHROMATS[seen_by]) @ rgb, 0, 1) ** (1 / 2.2) for rgb in linear]
    nearest = min(float(np.linalg.norm(a - b)) for a, b in itertools.combinations(seen, 2))
    assert nearest > 0.15
    assert len(set(MARKERS)) == len(MARKERS) >= len(COLOURS)
