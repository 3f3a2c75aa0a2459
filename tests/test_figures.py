"""What is drawn: axes with names, a legend without repeats, and lines that are the record's numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import image
from scipy.special import ndtri

from kfx import load_run
from kfx.plots import curve, draw, evaluation, flow, plane, precision, surrogate, trace
from kfx.plots.style import title

QUICK = ["device.precision_check=off", "figures=false", "hydra.run.dir=r"]


def line(axes, label):
    (found,) = [each for each in axes.lines if each.get_label() == label]
    return found


def assert_readable(picture):
    """Every panel says what its axes are; labels of a legend do not repeat; no text lies outside."""
    for axes in picture.axes:
        assert axes.get_xlabel(), "an axis without a name"
        assert axes.get_ylabel(), "an axis without a name"
        labels = [
            text.get_text() for legend in [axes.get_legend(), *picture.legends] if legend for text in legend.texts
        ]
        assert len(labels) == len(set(labels))


def test_the_fitted_curve_is_the_prediction(kfx):
    words = ["dataset=three_bumps", "dataset.n_train=30", "sampler.batch_size=20", "optimizer.iterations=4"]
    assert kfx("run", *words, *QUICK, "evaluation.posterior_variance=true")[0] == 0
    run = load_run("r")
    picture = curve.fitted_curve(run)
    assert_readable(picture)
    (axes,) = picture.axes
    with np.load("r/predictions.npz") as kept:
        order = np.argsort(kept["x_test"][:, 0])
        np.testing.assert_array_equal(line(axes, "target").get_ydata(), kept["y_test"][order, 0])
        trained = kept["trained/30/0/0.0001/mean"][order, 0]
        np.testing.assert_array_equal(line(axes, "trained kernel").get_ydata(), trained)
        np.testing.assert_array_equal(line(axes, "training points").get_xdata(), kept["x_train"][:, 0])
    (band,) = axes.collections
    assert band.get_label() == "± 2 posterior sd of a kernel of scale 1"
    assert axes.get_title() == title(run, "$N_I$ = 30")


@pytest.mark.parametrize("targets", ["standardized", "log"])
def test_the_band_around_the_curve_holds_the_share_of_targets_that_is_promised(kfx, in_folder, targets):
    rng = np.random.default_rng(0)
    x = rng.uniform(-3, 3, 160)
    y = 1e3 * np.exp(np.sin(x) + 0.3 * rng.standard_normal(160))  # far from the scale 1
    pd.DataFrame({"x": x, "y": y}).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", f"dataset.targets={targets}"]
    code, _, err = kfx("run", *words, *QUICK, "evaluation.posterior_variance=true", "optimizer.iterations=5")
    assert code == 0, err
    (axes,) = curve.fitted_curve(load_run("r")).axes
    (band,) = axes.collections
    assert band.get_label() == "95 % of targets"
    assert axes.get_xlabel() == "x after normalize"
    own = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    half = ndtri(0.975) * own.get("deviation", 0)  # without `low` and `high` targets are normally distributed
    low, high = own.get("low", own["prediction"] - half), own.get("high", own["prediction"] + half)
    drawn = band.get_paths()[0].vertices[:, 1].round(6)
    assert np.isin(np.concatenate([low, high]).round(6), drawn).all()


@pytest.fixture
def flowed(kfx):
    words = ["+experiment=owhadi_yoo/swiss_roll_nugget", "optimizer.iterations=6", "dataset.n_train=30"]
    small = ["follow.every=3", "flow.snapshots=3", "follow.last=2", "flow.record_layers=true"]
    assert kfx("run", *words, *small, *QUICK)[0] == 0
    return load_run("r")


def test_a_flow_shows_its_positions_errors_and_steps(flowed):
    last = flow.snapshots(flowed)[-1][1]
    picture = plane.positions(flowed)
    drawn = picture.axes[-1].collections[-1].get_offsets()
    np.testing.assert_allclose(np.asarray(drawn), last, err_msg="the last panel is where the points ended")
    picture = flow.errors_of_flow(flowed)
    assert_readable(picture)
    table = pd.read_csv("r/flow.csv")
    distance = table[table["metric"] == "distance_between"].groupby("layer")["value"].mean()
    np.testing.assert_array_equal(line(picture.axes[1], "between classes").get_ydata(), distance)
    errors = table[table["metric"] == "error"].groupby("layer")["value"].mean()
    np.testing.assert_array_equal(picture.axes[0].lines[0].get_ydata(), errors)
    picture = trace.displacement_over_layers(flowed)
    np.testing.assert_array_equal(picture.axes[0].lines[0].get_ydata(), flowed.trace["diagnostic.displacement"])
    np.testing.assert_array_equal(picture.axes[1].lines[0].get_ydata(), flowed.trace["diagnostic.step"])
    assert picture.axes[1].get_xlabel() == "layer"


def test_a_flows_field_is_that_of_its_layers(kfx):
    words = ["+experiment=owhadi_yoo/swiss_roll_nugget", "optimizer.iterations=20", "dataset.n_train=30"]
    assert kfx("run", *words, "flow.snapshots=20", "flow.record_layers=true", *QUICK)[0] == 0
    run = load_run("r")
    layers, picture = list(run.kernel.layers), plane.velocities(run)
    panels = {axes.get_title().partition("\n")[0]: axes for axes in picture.axes}
    assert list(panels) == [
        *(f"layer {n}" for n in (11, 12, 13, 14, 20)),
        *(f"10 × mean of {n} to {n + 3}" for n in (1, 5, 9, 13, 17)),
    ]

    def arrows(panel):
        drawn = next(c for c in panels[panel].collections if type(c).__name__ == "Quiver")
        return torch.as_tensor(np.stack([drawn.X, drawn.Y], axis=1)), np.stack([drawn.U, drawn.V], axis=1)

    points, moved = arrows("layer 20")
    np.testing.assert_allclose(moved, layers[-1].step * layers[-1].field(points).numpy(), atol=1e-12)
    points, moved = arrows("10 × mean of 5 to 8")
    after = points
    for layer in layers[4:8]:
        after = layer.move(after)
    np.testing.assert_allclose(moved, 10 * (after - points).numpy() / 4, atol=1e-12)


def test_a_flow_shows_on_which_side_its_kernel_puts_the_plane(flowed):
    panel = plane.positions(flowed).axes[0]
    sides = panel.collections[0]
    assert len(sides.get_facecolor()) == 2, "two classes"
    before, values = flow.snapshots(flowed)[0][1], flow.targets(flowed, 30)
    upper = sides.get_paths()[1]
    inside = [upper.contains_point(point) for point in before.reshape(30, 2)]
    assert np.mean(inside == (values == values.max())) > 0.9, "30 points are fitted by the kernel that they move by"


@pytest.mark.slow
def test_the_sides_of_the_plane_are_those_of_the_kernels_own_regularization(kfx, monkeypatch):
    words = ["+experiment=owhadi_yoo/swiss_roll_nugget", "optimizer.iterations=4", "dataset.n_train=30", *QUICK]
    own = ["follow.every=2", "flow.snapshots=2", "regularization.selection=leave_one_out", "regularization.value=100"]
    code, _, err = kfx("run", *words, *own)
    assert code == 0, err
    drawn, run = [], load_run("r")
    monkeypatch.setattr(
        plane, "_draw_boundary", lambda panel, kernel, regularization, *at: drawn.append(regularization)
    )
    plane.positions(run)
    used = run.evaluation.query("kernel == 'trained'")["regularization"].iloc[0]
    assert used < 100
    assert {each.value for each in drawn} == {used}


def test_images_that_flow_are_shown_as_images(kfx):
    words = ["dataset=digits", "dataset.n_train=20", "dataset.n_test=10", "sampler.batch_size=10"]
    assert kfx("run", *words, "optimizer=flow_euler", "optimizer.iterations=3", *QUICK)[0] == 0
    picture = flow.images(load_run("r"))
    shown = [axes.images[0].get_array() for axes in picture.axes if axes.images]
    assert {array.shape for array in shown} == {(8, 8)}
    before = flow.snapshots(load_run("r"))[0][1]
    np.testing.assert_array_equal(shown[0], before[0].reshape(8, 8))


def test_training_images_stand_over_where_the_flow_took_them_class_by_class(kfx):
    words = ["dataset=digits", "dataset.n_train=40", "dataset.n_test=10", "sampler.batch_size=20"]
    assert kfx("run", *words, "optimizer=flow_euler", "optimizer.iterations=3", *QUICK)[0] == 0
    run = load_run("r")
    picture = flow.classes(run)
    (_, before, _), *_, (_, after, _) = flow.snapshots(run)
    labels = flow.targets(run, 40)
    assert len([axes for axes in picture.axes if axes.images]) == len(np.unique(labels))
    panel, own = picture.axes[0], labels == 0
    assert panel.get_title(loc="left") == f"class 0, mean of {own.sum()}"
    shown = panel.images[0].get_array()
    for row, points in ((0, before), (10, after)):
        np.testing.assert_allclose(shown[row + 1 : row + 9, 1:9], points[own][0].reshape(8, 8))
        np.testing.assert_allclose(shown[row + 1 : row + 9, -9:-1], points[own].mean(axis=0).reshape(8, 8))


@pytest.mark.slow
def test_a_sample_that_changes_its_size_is_shown_with_rho(kfx):
    words = ["dataset=three_bumps", "sampler=dynamic", "optimizer=sgd", "optimizer.iterations=12", "kernel.sigma=1"]
    assert kfx("run", *words, "sampler.window=3", *QUICK)[0] == 0
    run = load_run("r")
    picture = trace.sample_size_over_iterations(run)
    assert_readable(picture)
    assert [axes.get_ylabel() for axes in picture.axes] == ["sample size $N_c$", r"$\rho$"]
    np.testing.assert_array_equal(picture.axes[0].lines[0].get_ydata(), run.trace["diagnostic.sample_size"])
    assert run.trace["diagnostic.sample_size"].nunique() > 1


@pytest.mark.slow
@pytest.mark.parametrize("searched", [("alpha", "beta"), ("beta", "gamma")])
def test_a_search_shows_what_was_told_and_its_best(kfx, searched):
    words = ["kernel=rational_quadratic", "optimizer=bayesian", "optimizer.iterations=7", "optimizer.initial_points=4"]
    first, second = searched
    words += [f"kernel.trainable=[{first},{second}]", f"kernel.bounds.{first}=[1,5]", f"kernel.bounds.{second}=[1,7]"]
    assert kfx("run", *words, "sampler.batch_size=30", *QUICK)[0] == 0
    run = load_run("r")
    picture = surrogate.convergence(run)
    assert_readable(picture)
    (axes,) = picture.axes
    np.testing.assert_array_equal(line(axes, "what the surrogate is fitted to").get_ydata(), run.trace["told"])
    np.testing.assert_array_equal(line(axes, "lowest so far").get_ydata(), run.trace["told"].cummin())
    picture = surrogate.surface(run)
    axes = picture.axes[0]
    (mesh,) = axes.collections
    corners = mesh.get_coordinates().reshape(-1, 2)
    np.testing.assert_allclose([corners.min(axis=0), corners.max(axis=0)], [[1, 1], [5, 7]])
    parameters = [f"parameter.{name}" for name in searched]
    np.testing.assert_array_equal(np.stack(line(axes, "evaluated").get_data(), axis=1), run.trace[parameters])
    best = run.trace.loc[run.trace["told"].idxmin(), parameters]
    assert [float(part[0]) for part in line(axes, "best").get_data()] == best.to_list()
    assert picture.axes[1].get_ylabel() == r"surrogate's mean of $\rho$"


@pytest.mark.slow
def test_the_precision_check_has_a_line_for_each_arithmetic(kfx, in_folder):
    words = [
        "dataset.n_train=40",
        "sampler.batch_size=20",
        "optimizer.iterations=2",
        "evaluation.n_interpolation=[20,40]",
    ]
    assert kfx("run", *words, "kernel_check=true", "device.precision_check=warn", "hydra.run.dir=r")[0] == 0
    import json

    content = json.loads((in_folder / "r/precision.json").read_text())
    picture = precision.error_against_size({"": content})
    assert_readable(picture)
    for verdict in content["verdicts"]:
        drawn = line(picture.axes[0], f"{verdict['framework']} {verdict['device']} {verdict['dtype']}")
        assert drawn.get_xdata().tolist() == [int(n) for n in verdict["products"]]
    table = pd.read_csv("r/kernel_check.csv")
    picture = precision.product_check(load_run("r"))
    assert_readable(picture)
    single = table[(table["device"] == "cpu") & (table["dtype"] == "float32")]
    np.testing.assert_array_equal(line(picture.axes[0], "cpu float32").get_ydata(), single["norm_of_difference"])


@pytest.mark.slow
def test_pictures_of_a_run_are_files_that_show_something(kfx, in_folder):
    words = ["dataset=three_bumps", "dataset.n_train=30", "sampler.batch_size=20", "optimizer.iterations=4"]
    assert kfx("run", *words, "device.precision_check=off", "figures=false", "hydra.run.dir=r")[0] == 0
    paths = draw(in_folder / "r")
    assert {path.stem for path in paths} == {"rho", "parameters", "evaluation", "curve"}
    for path in paths:
        pixels = image.imread(path)[..., :3]
        assert len(np.unique((pixels * 8).astype(int).reshape(-1, 3), axis=0)) > 4, "more than an empty page"
        border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
        assert (border > 0.98).all(), "nothing is cut off at the edge"


@pytest.mark.slow
def test_pictures_for_papers_have_a_columns_width_small_text_and_no_titles(kfx, in_folder):
    import kfx as package

    run = package.run(
        ["optimizer.iterations=4", "sampler.batch_size=40", "figures=false", "hydra.run.dir=r"], progress=False
    )
    screen, paper = run.plot("rho"), run.plot("rho", style="paper")
    assert screen.get_figwidth() == 6.4
    assert paper.get_figwidth() == 3.25
    assert screen.axes[0].get_title()
    assert not paper.axes[0].get_title()
    assert paper.axes[0].xaxis.label.get_fontsize() == 8
    assert run.plot("precision", style="paper").get_figwidth() == 6.75, "two panels take the page"
    assert kfx("plot", "r", "--style", "paper", "--format", "pdf")[0] == 0
    assert b"/Type3" not in (in_folder / "r/figures/rho.pdf").read_bytes(), "fonts that journals take"
    code, _, err = kfx("plot", "r", "--style", "poster")
    assert (code, err.count("\n")) == (2, 1)
    assert "expected one of screen, paper" in err


@pytest.mark.slow
def test_comparisons_are_written_in_markdown_and_drawn_for_papers(kfx, in_folder):
    import kfx as package

    words = ["optimizer=none,adam", "seed=0,1", "optimizer.iterations=3", "sampler.batch_size=40", "figures=false"]
    package.sweep([*words, "hydra.sweep.dir=s"], progress=False)
    out = ("--markdown", "t.md", "--figure", "t.pdf", "--style", "paper")
    assert kfx("compare", "s", "--by", "optimizer", "--metric", "mse", *out)[0] == 0
    lines = (in_folder / "t.md").read_text().splitlines()
    assert [line.count("|") for line in lines[-4:]] == [8] * 4
    assert lines[-2].startswith("| adam | 2 | ")
    assert (in_folder / "t.pdf").stat().st_size > 1000


@pytest.mark.parametrize("sizes", ["[20,40]", "[40]"])
@pytest.mark.parametrize("failed", ["trained", "initial"])
def test_a_mean_is_drawn_only_where_no_repeat_failed(kfx, in_folder, sizes, failed):
    words = ["dataset=three_bumps", "dataset.n_train=50", "sampler.batch_size=20", "optimizer.iterations=2"]
    many = [
        "evaluation.repeats=3",
        f"evaluation.n_interpolation={sizes}",
        "evaluation.regularization.value=[1e-4,1e-3]",
    ]
    code, _, err = kfx("run", *words, *QUICK, *many)
    assert code == 0, err
    run = load_run("r")
    lost = (run.evaluation["kernel"] == failed) & (run.evaluation["repeat"] == 1)
    lost &= run.evaluation["n_interpolation"] == 40
    run = replace(run, evaluation=run.evaluation.assign(value=run.evaluation["value"].mask(lost)))
    axes = evaluation.before_and_after(run).axes[0]
    assert "2 evaluations failed" in axes.get_title(), "of two λ"
    for bars in axes.containers:
        (line_,) = bars.lines[:1]
        known = dict(zip(*(np.asarray(each) for each in line_.get_data()), strict=True))
        if sizes == "[40]":  # x is 0 for the initial kernel, and 1 for the trained one
            assert np.isnan(known[float(failed == "trained")])
            assert np.isfinite(known[float(failed == "initial")])
        else:
            assert set(known) == ({20} if bars.get_label().startswith(failed) else {20, 40})
