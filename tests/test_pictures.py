"""Pictures say what a run found: predictions beside the truth, which features matter, dates, what was discarded."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.dates import num2date

import kfx
from kfx.plots import FIGURES
from kfx.plots.style import looking
from kfx.record.verdict import change, verdict
from kfx.report import run_page

QUIET = ["figures=false", "device.precision_check=off"]
KINDS = {
    "regression": ["dataset=diabetes", "optimizer.iterations=20", *QUIET],
    "classes": ["dataset=digits", "dataset.n_train=150", "dataset.n_test=80", "optimizer.iterations=8", *QUIET],
}


def two_targets(folder):
    """Values of two outputs, one with a sign of formulas in its name."""
    x = np.random.default_rng(3).normal(size=(80, 2))
    pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "cost $": x[:, 0] ** 2, "y_2": x[:, 1]}).to_csv(folder / "two.csv")
    words = ["dataset=table", f"dataset.path='{folder / 'two.csv'}'", "dataset.target=['cost $',y_2]"]
    return [*words, "dataset.features=[a,b]"]


def own_table(folder):
    """A table whose first feature matters most, and whose last not at all; names are long."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    frame = pd.DataFrame(x, columns=["years since the first examination of the patient", "weight", "noise"])
    frame["y"] = np.sin(2 * x[:, 0]) + 0.3 * x[:, 1]
    frame.to_csv(folder / "own.csv", index=False)
    return ["dataset=table", f"dataset.path='{folder / 'own.csv'}'", "dataset.target=y", "kernel.ard=true"]


def noise_table(folder):
    """Targets that no feature explains: training is discarded."""
    rng = np.random.default_rng(1)
    frame = pd.DataFrame(rng.normal(size=(60, 5)), columns=list("abcde"))
    frame["y"] = rng.normal(size=60) + 0.1 * frame["a"]
    frame.to_csv(folder / "noise.csv", index=False)
    return ["dataset=table", f"dataset.path='{folder / 'noise.csv'}'", "dataset.target=y", "kernel.ard=true"]


def series(folder):
    """A year of days."""
    days = pd.date_range("2021-01-01", periods=365)
    values = np.sin(2 * np.pi * np.arange(365) / 30) + 0.1 * np.random.default_rng(2).normal(size=365)
    pd.DataFrame({"day": days.strftime("%d.%m.%Y"), "sales": values}).to_csv(folder / "series.csv", index=False)
    words = ["dataset=series", f"dataset.path='{folder / 'series.csv'}'", "dataset.time=day", "dataset.lags=5"]
    return [*words, "evaluation=rollout", "dataset.n_test=100"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each kind, once for all tests."""
    made, folder = {}, tmp_path_factory.mktemp("pictures")
    words = {
        "regression": KINDS["regression"],
        "classes": KINDS["classes"],
        "lengths": [*own_table(folder), "optimizer.iterations=30", *QUIET],
        "discarded": [*noise_table(folder), *QUIET],
        "outputs": [*two_targets(folder), "optimizer.iterations=5", *QUIET],
        "series": [*series(folder), "dataset.target=increment", "optimizer.iterations=5", *QUIET],
    }
    for name, own in words.items():
        made[name] = kfx.run([*own, f"hydra.run.dir='{folder / name}'"], progress=False)
    return made


def evaluation(run):
    return FIGURES["evaluation"](run)


def test_values_are_predicted_against_true(runs):
    run = runs["regression"]
    picture = evaluation(run)
    (axes,) = picture.axes
    table = pd.read_csv(run.directory / "predictions.csv")
    for points, kernel in zip(axes.collections, ("initial", "trained"), strict=True):
        own = table[table["kernel"] == kernel]
        np.testing.assert_allclose(points.get_offsets(), own[["target", "prediction"]])
    (line,) = axes.lines
    np.testing.assert_array_equal(line.get_xdata(), line.get_ydata())
    assert axes.get_xlim() == axes.get_ylim()
    mean = {kernel: np.square(own["prediction"] - own["target"]).mean() for kernel, own in table.groupby("kernel")}
    said = picture.get_suptitle().splitlines()[-1]
    percent = 100 * (mean["trained"] / mean["initial"] - 1)
    assert f"mse {mean['initial']:.1f} → {mean['trained']:.1f} (−{-percent:.0f} %), R² " in said
    assert percent < -10
    labels = axes.get_legend_handles_labels()[1]
    assert labels[0].startswith(f"initial kernel: mse {mean['initial']:.1f}, R² 0.")
    assert labels[1].startswith(f"trained kernel: mse {mean['trained']:.1f}, R² 0.")


def test_changes_of_a_series_are_called_so(runs, tmp_path):
    (axes,) = evaluation(runs["series"]).axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("true change from the last value", "predicted change")
    simple = run_page.view_beside_baselines(runs["series"])
    assert "; the mean change has " in simple.verdict
    assert "R²#" not in simple.beside.heads
    assert [row[0] for row in simple.measured[1].rows if "r2" in row[0]] == ["r2 of forecasts"]
    words = series(tmp_path)
    frame = pd.read_csv(tmp_path / "series.csv")
    frame.assign(**{"price $": np.roll(frame["sales"], 9)}).to_csv(tmp_path / "series.csv", index=False)
    own = [f"hydra.run.dir='{tmp_path / 'r'}'", "dataset.target=next", "optimizer.iterations=2", *QUIET]
    run = kfx.run([*words, *own], progress=False)
    panels = evaluation(run).axes
    assert [(axes.get_title(), axes.get_xlabel()) for axes in panels] == [
        ("sales", "true value"),
        (r"price \$", "true value"),
    ]


def test_each_output_has_its_plane(runs):
    run = runs["outputs"]
    table = pd.read_csv(run.directory / "predictions.csv").query("kernel == 'trained'")
    panels = evaluation(run).axes
    assert [axes.get_title() for axes in panels] == [r"cost \$", "y_2"]
    for i, axes in enumerate(panels):
        np.testing.assert_allclose(axes.collections[1].get_offsets(), table[[f"target.{i}", f"prediction.{i}"]])


def test_a_picture_says_how_often_points_are_drawn_and_how_many_outputs(tmp_path):
    own = [*KINDS["classes"], "evaluation.n_interpolation=[50]", "evaluation.repeats=3"]
    run = kfx.run([*own, f"hydra.run.dir='{tmp_path / 'classes'}'"], progress=False)
    assert evaluation(run).get_suptitle().endswith("\n240 predictions, 3 of each test point")
    own = [*KINDS["regression"], "evaluation.n_interpolation=[50]", "evaluation.repeats=3"]
    picture = evaluation(kfx.run([*own, f"hydra.run.dir='{tmp_path / 'values'}'"], progress=False))
    assert picture.get_suptitle().endswith("\n300 predictions, 3 of each test point")
    picture.canvas.draw()
    assert picture.get_tightbbox().width < picture.get_figwidth()
    x = np.random.default_rng(3).normal(size=(80, 6))
    pd.DataFrame(x, columns=list("abcdef")).assign(x=x.sum(axis=1)).to_csv(tmp_path / "many.csv", index=False)
    words = ["dataset=table", f"dataset.path='{tmp_path / 'many.csv'}'", "dataset.target=[a,b,c,d,e]"]
    own = ["optimizer.iterations=2", *QUIET, f"hydra.run.dir='{tmp_path / 'many'}'"]
    picture = evaluation(kfx.run([*words, *own], progress=False))
    assert [axes.get_title() for axes in picture.axes] == list("abcd")
    assert picture.get_suptitle().endswith("\nfirst 4 of 5 outputs")


def test_classes_are_a_confusion_matrix(runs):
    run = runs["classes"]
    picture = evaluation(run)
    axes = picture.axes[0]
    own = pd.read_csv(run.directory / "predictions.csv").query("kernel == 'trained'")
    counts = pd.crosstab(own["class"], own["prediction"]).reindex(index=range(10), columns=range(10), fill_value=0)
    shares = counts.to_numpy() / counts.to_numpy().sum(axis=1, keepdims=True)
    np.testing.assert_allclose(axes.images[0].get_array(), shares)
    written = {tuple(map(int, text.get_position()[::-1])): int(text.get_text().split("\n")[0]) for text in axes.texts}
    assert written == {(i, j): counts.loc[i, j] for i in range(10) for j in range(10) if counts.loc[i, j]}
    assert [tick.get_text() for tick in axes.get_xticklabels()] == list(map(str, range(10)))
    every = pd.read_csv(run.directory / "predictions.csv")
    right = (every["class"] == every["prediction"]).groupby(every["kernel"]).sum()
    more = right["trained"] - right["initial"]
    said = f"{abs(more)} {'more' if more > 0 else 'fewer'} of 80 test points" if more else "as many of 80 test points"
    assert f": {said} " in picture.get_suptitle()
    assert f": {said} " in verdict(run) or not more


def test_a_change_is_said_in_words():
    assert change("mse", 3683.4, 2813.9) == " (−24 %)"
    assert change("mse", 2.0, 2.01) == " (+0.5 %)"
    assert change("mse", 2.0, 2.0) == ""
    assert change("accuracy", 0.9, 0.95, (90, 95, 100)) == ": 5 more of 100 test points are right"
    assert change("accuracy", 0.9, 0.89, (90, 89, 100)) == ": 1 fewer of 100 test points is right"
    assert change("accuracy", 0.9, 0.9, (90, 90, 100)) == ": as many of 100 test points are right"


def test_the_feature_that_matters_most_is_on_top_and_has_the_longest_bar(runs):
    run = runs["lengths"]
    (axes,) = FIGURES["lengths"](run).axes
    found = run.lengths
    names = [tick.get_text().replace("\n", " ") for tick in axes.get_yticklabels()]
    assert names[::-1] == list(found.index)
    assert names[-1].startswith("years since"), "the last tick is on top"
    bars = [bar.get_width() for bar in axes.patches]
    np.testing.assert_allclose(bars[::-1], 1 / found)
    assert bars == sorted(bars)
    assert {bar.get_linestyle() for bar in axes.patches} == {"solid"}
    assert "relevance 1/ℓ" in axes.get_xlabel()
    assert [text.get_text() for text in axes.texts][::-1] == [f"ℓ {length:.3g}" for length in found]


def test_parameters_that_were_discarded_are_dashed_and_said_so(runs):
    run = runs["discarded"]
    assert run.metrics["fall_back"]["initial_kept"] + run.metrics["fall_back"]["one_length_kept"] == 1
    lines = FIGURES["parameters"](run).axes[0].lines
    fitted = [line for line in lines if len(line.get_xdata()) > 1]
    assert {line.get_linestyle() for line in fitted} == {"--"}
    assert all(line.get_label().endswith(", discarded") for line in fitted)
    kept = [line.get_ydata()[0] for line in lines if len(line.get_xdata()) == 1]
    final = run.metrics["parameters"]["final"]
    np.testing.assert_allclose(sorted(kept), sorted([*final["lengths"], final["regularization"]]))
    for panel in FIGURES["rho"](run).axes:
        assert [line.get_label() for line in panel.lines if line.get_linestyle() == "--"] or "discarded" in str(
            panel.get_legend_handles_labels()[1]
        )
    bars = FIGURES["lengths"](run).axes[0].patches
    hollow = [bar for bar in bars if bar.get_linestyle() == "--"]
    last = run.trace.filter(like="parameter.lengths.").iloc[-1]
    np.testing.assert_allclose(sorted(bar.get_width() for bar in hollow), sorted(1 / last))
    assert {line.get_linestyle() for line in FIGURES["parameters"](runs["lengths"]).axes[0].lines} == {"-"}


def test_kept_bars_are_seen_beside_a_discarded_length_near_zero(runs):
    run = runs["discarded"]
    trace = run.trace.copy()
    trace.loc[trace.index[-1], "parameter.lengths.b"] = 1 / 2765
    (axes,) = FIGURES["lengths"](replace(run, trace=trace)).axes
    kept = [bar.get_width() for bar in axes.patches if bar.get_linestyle() != "--"]
    marks = axes.lines[0].get_xdata()
    assert axes.get_xlim() == (0, pytest.approx(1.15 * max(*kept, *marks)))
    (said,) = [text for text in axes.texts if text.get_text() == "ℓ 0.000362 →"]
    assert said.xy[0] == axes.get_xlim()[1]


def test_hollow_bars_are_of_the_discarded_folds_alone(runs):
    run = runs["discarded"]
    last = run.trace.iloc[[-1]]
    names = [name for name in last if name.startswith("parameter.lengths.")]
    trace = pd.concat(
        [last.assign(**{"diagnostic.fold": i}, **dict.fromkeys(names, 10.0 ** (i * i))) for i in range(3)]
    )
    final = run.metrics["parameters"]["final"]
    folds = [{**final, "lengths": [float(each)] * 5} for each in (1, 1, 2)]
    folds[1]["lengths"] = [1.0, 2.0, 3.0, 4.0, 5.0]  # the one that was kept
    parameters = {**run.metrics["parameters"], "initial_folds": [folds[0]] * 3, "folds": folds}
    kept = {"initial_kept": 1, "one_length_kept": 1, "fits": 3, "kept": ["initial", "fitted", "one_length"]}
    metrics = {**run.metrics, "fall_back": kept, "parameters": parameters}
    (axes,) = FIGURES["lengths"](replace(run, trace=trace, metrics=metrics)).axes
    hollow = [bar.get_width() for bar in axes.patches if bar.get_linestyle() == "--"]
    np.testing.assert_allclose(hollow, np.full(5, 0.01))
    assert "discarded in 2 of 3 folds: where training ended" in axes.get_legend_handles_labels()[1]


def test_no_number_covers_the_mark_of_an_initial_length(runs, monkeypatch):
    run, ends = runs["lengths"], 1 / np.array([7.62, 0.5, 1.0])
    for gap in (0.0, 0.02, 0.1, 0.2, 0.3):
        found = ["a", "b", "c"], 1 / (ends[None] + gap), 1 / ends[None]
        monkeypatch.setattr("kfx.plots.lengths.lengths_of_features", lambda *_, found=found: found)
        picture = FIGURES["lengths"](run)
        picture.canvas.draw()
        (axes,), (line,) = picture.axes, picture.axes[0].lines
        marks = axes.transData.transform(line.get_xydata())
        boxes = [text.get_window_extent() for text in axes.texts]
        assert not any(box.contains(*mark) for box in boxes for mark in marks), gap
        assert line.get_zorder() > max(text.get_zorder() for text in axes.texts)


def test_a_forecast_stands_over_its_dates(runs):
    (axes,) = FIGURES["forecast"](runs["series"]).axes
    assert axes.get_xlabel() == "date"
    first = num2date(axes.lines[0].get_xdata(orig=False)[0])
    assert first.strftime("%d.%m.%Y") == pd.read_csv(runs["series"].directory / "forecasts.csv")["time"][0]
    axes.figure.canvas.draw()
    low, high = axes.get_xlim()
    labels = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    shown = [label.get_text() for at, label in labels if low <= at <= high]
    assert len(shown) >= 2
    assert all(text.startswith("2021-") for text in shown)


@pytest.mark.parametrize("kind", ["regression", "classes", "lengths", "discarded", "outputs", "series"])
@pytest.mark.parametrize("look", ["screen", "paper"])
def test_every_text_lies_within_its_picture(runs, kind, look):
    run = runs[kind]
    with looking(look):
        drawn = {name: FIGURES[name](run) for name in ("evaluation", "lengths", "parameters", "rho", "forecast")}
    for name, picture in drawn.items():
        if picture is not None:
            picture.canvas.draw()
            box = picture.get_tightbbox(picture.canvas.get_renderer())  # of all that is drawn, in inches
            inside = min(box.x0, box.y0) > -0.01 and np.all([box.x1, box.y1] < picture.get_size_inches() + 0.01)
            assert inside, f"{name}: {box} is not within {picture.get_size_inches()}"
