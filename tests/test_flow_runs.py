"""Runs of flows: what is measured, drawn and recorded on the way."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import pdist

from kfx import load_run
from kfx.data import synthetic
from kfx.evaluation.follower import linearly_separable, mean_squared_distances, misplaced_points
from kfx.flows.euler import HybridFlow
from kfx.flows.flow import FlowSettings
from kfx.flows.flowed import FlowedKernel
from kfx.flows.layers import StepRule
from kfx.flows.vector_field import (
    Interpolation,
)
from kfx.kernels import RBF
from kfx.numerics.streams import Streams
from kfx.objectives import rho
from kfx.optimizers.gradient import Nesterov
from kfx.optimizers.loss import Loss
from kfx.outcomes import CheckpointError
from kfx.plots.flow import in_plane, limits
from kfx.sampling.samplers import Sampler
from tests.flow_parts import NUGGET, Memory, euler, runge_kutta, spirals


def test_distances_and_separability():
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(30, 2)), rng.integers(0, 3, 30)
    pairs = ((x[:, None] - x[None]) ** 2).sum(axis=2)
    same = labels[:, None] == labels[None]
    found = mean_squared_distances(torch.as_tensor(x), labels)
    assert found["distance_all"] == pytest.approx(pairs.mean())
    assert found["distance_in_class"] == pytest.approx(pairs[same].mean())
    assert found["distance_between"] == pytest.approx(pairs[~same].mean())
    sides = (x[:, 0] + 2 * x[:, 1] > 0.3).astype(int)
    assert linearly_separable(x, sides)
    assert misplaced_points(x, sides) == 0
    sides[np.argmax(x[:, 0] + 2 * x[:, 1])] = 0
    assert not linearly_separable(x, sides)
    assert misplaced_points(x, sides) == 1
    assert np.isnan(linearly_separable(x * 1e200, sides))
    far = np.concatenate([rng.normal(size=(20, 2)) - 4, rng.normal(size=(20, 2)) + 4, [[-100, -100]]])
    assert misplaced_points(far, np.repeat([0, 1], [20, 21])) == 1, "a far point does not draw the line to itself"


@pytest.mark.slow
def test_a_run_of_a_flow_leaves_tables_pictures_and_a_film(kfx, in_folder):
    words = ["+experiment=owhadi_yoo/swiss_roll_nugget", "optimizer.iterations=6", "dataset.n_train=30", "seed=1"]
    small = ["follow.every=3", "flow.snapshots=3", "follow.last=2", "device.precision_check=off"]
    assert kfx("run", *words, *small, "figures=true", "hydra.run.dir=r")[0] == 0
    table = pd.read_csv("r/flow.csv")
    assert sorted(table["layer"].unique()) == [0, 3, 6], "of 6 layers the last alone"
    assert {"error", "distance_ratio", "linearly_separable", "misplaced_points"} <= set(table["metric"])
    run = load_run("r")
    last = run.metrics["last_layers"][0]
    errors = table[(table["metric"] == "error") & (table["layer"] >= 5)]["value"]
    assert last["mean"] == pytest.approx(errors.mean())
    drawn = {path.stem for path in (in_folder / "r" / "figures").iterdir()}
    assert {"flow_positions", "flow_errors", "flow_field"} <= drawn
    assert isinstance(run.kernel, FlowedKernel)
    assert np.isfinite(run.kernel.transform(np.ones((2, 2)))).all()
    code, _, _ = kfx("animate", "r", "--output", "film.gif", "--seconds", "1")
    assert code == 0
    assert (in_folder / "film.gif").read_bytes().startswith(b"GIF")
    assert kfx("animate", "r", "--output", "film.png")[0] == 2


def test_a_film_shows_the_plane_in_which_points_end_up_apart():
    rng = np.random.default_rng(0)
    plane = np.linalg.qr(rng.normal(size=(5, 2)))[0].T
    ends = rng.normal(size=(20, 2)) * (3.0, 1.0)
    shown = in_plane([rng.normal(size=(20, 5)), ends @ plane + 7.0])
    assert shown.shape == (2, 20, 2)
    np.testing.assert_allclose(pdist(shown[1]), pdist(ends), rtol=1e-10)
    np.testing.assert_allclose(shown[1].mean(axis=0), 0, atol=1e-12)
    assert np.array_equal(in_plane([ends])[0], ends), "a plane stays as it is"


def test_a_flow_in_folds_keeps_a_kernel_each(kfx, in_folder):
    words = ["+experiment=darcy/diabetes_flow", "optimizer.iterations=3", "evaluation.folds=3", "figures=false"]
    assert kfx("run", *words, "device.precision_check=off", "hydra.run.dir=r")[0] == 0
    assert sorted(path.name for path in (in_folder / "r").glob("flow-*")) == ["flow-0.npz", "flow-1.npz", "flow-2.npz"]


@pytest.mark.parametrize(
    "make", [lambda: euler(4, batch=30, record_layers=True), lambda: runge_kutta(4, 30, record_layers=True)]
)
def test_the_size_of_recorded_layers_is_known_beforehand(make, tmp_path):
    data, flow, rows = spirals(), make(), Memory(tmp_path)
    flow.fit(RBF(1.4), data, Streams(0), rows)
    size = rows.layer_path.stat().st_size
    assert size == pytest.approx(4 * flow.layer_bytes(*data[:2]), rel=0.1)


def test_recorded_layers_that_no_disk_holds_are_refused_with_their_size(kfx, in_folder):
    words = ["+experiment=owhadi_yoo/swiss_roll_nugget", "optimizer.iterations=2", "device.precision_check=off"]
    code, _, err = kfx("run", *words, "figures=false", "hydra.run.dir=r")
    assert code == 0
    assert "kfx: flow.record_layers: about 7.4 kB (3.7 kB a layer)" in err
    code, _, err = kfx("run", *words[:1], "optimizer.iterations=900000000", "hydra.run.dir=s")
    assert code == 2
    assert "flow.record_layers=true: needs about" in err


def test_pictures_of_a_flow_have_one_scale_unless_the_points_spread_far():
    near = [np.array([[1.0, 0.0]]), np.array([[0.0, -2.0]])]
    np.testing.assert_allclose(limits(near), [2.1, 2.1])
    far = limits([*near, np.array([[9.0, 0.0]]), np.array([[5.0, 0.0]])])
    assert far[0] < far[1] < far[2] == far[3], "grows, and does not tremble"
    assert far[2] >= 9.0


@pytest.mark.slow
def test_several_lambdas_of_evaluation_stay_apart(kfx, in_folder):
    words = ["--smoke", "+experiment=khalid/three_bumps_prediction", "follow.every=1", "follow.last=2"]
    assert kfx("run", *words, "figures=true", "device.precision_check=off", "hydra.run.dir=r")[0] == 0
    table = pd.read_csv("r/flow.csv")
    errors = table[table["metric"] == "mse"]
    assert sorted(errors["regularization"].unique()) == [1e-8, 1e-6, 1e-5, 1e-4]
    last = {row["regularization"]: row["mean"] for row in load_run("r").metrics["last_layers"]}
    for value, mean in last.items():
        chosen = errors[(errors["regularization"] == value) & (errors["layer"] == errors["layer"].max())]
        assert mean == pytest.approx(chosen["value"].mean())


def test_a_flow_that_stops_says_why_and_is_measured_where_it_stopped(kfx, in_folder):
    words = ["+experiment=khalid/three_bumps_rk45", "kernel.sigma=2", "dataset.n_train=60", "seed=0"]
    stiff = ["sampler.batch_size=20", "optimizer.max_evaluations=26", "optimizer.iterations=30", "flow.snapshots=3"]
    often = ["follow.every=3", "follow.last=4", "device.precision_check=off", "figures=false"]
    code, out, _ = kfx("run", *words, *stiff, *often, "hydra.run.dir=r")
    assert code == 0
    run = load_run("r")
    end = run.metrics["flow_stopped"]["0"]
    assert "a layer needs more than 26 evaluations of the field" in end["reason"]
    assert f"flow        stopped, layer {end['layer']}: overshot" in out
    table = pd.read_csv("r/flow.csv")
    final = table[(table["layer"] == end["layer"]) & (table["metric"] == "mse")]
    assert len(final) == 1
    trained = run.evaluation[(run.evaluation["kernel"] == "trained") & (run.evaluation["metric"] == "mse")]
    assert float(final["value"].iloc[0]) == pytest.approx(float(trained["value"].iloc[0]))
    assert (in_folder / "r" / "snapshots" / f"{end['layer']:07d}.npz").is_file()


def test_a_trained_lambda_and_recorded_layers_read_back(kfx, in_folder):
    words = ["optimizer=hybrid", "objective=nll", "optimizer.space=log", "regularization.selection=trained"]
    small = ["dataset=swiss_roll", "dataset.n_train=30", "optimizer.iterations=3", "sampler.batch_size=20"]
    rest = ["flow.record_layers=true", "device.precision_check=off", "hydra.run.dir=r"]
    code, _, err = kfx("run", *words, *small, *rest)
    assert (code, "Traceback" in err) == (0, False)
    assert np.isfinite(load_run("r").kernel.transform(np.ones((2, 2)))).all()


def test_a_flow_that_stopped_in_its_first_layer_compares(kfx, in_folder):
    words = ["dataset=swiss_roll", "dataset.n_train=40", "sampler.batch_size=20", "optimizer=flow_euler"]
    rest = ["optimizer.iterations=3", "flow.remove_merged=1e9", "figures=false", "device.precision_check=off"]
    assert kfx("run", *words, *rest, "hydra.run.dir=r")[0] == 0
    assert load_run("r").metrics["flow_stopped"]["0"]["layer"] == 0
    code, out, _ = kfx("compare", "r")
    assert code == 0
    assert "accuracy" in out


@pytest.mark.parametrize("optimizer", ["flow_euler", "flow_rk45"])
def test_recorded_layers_of_an_averaged_flow_move_new_points_as_the_run_did(kfx, in_folder, optimizer):
    words = ["dataset=swiss_roll", "dataset.n_train=40", f"optimizer={optimizer}", "optimizer.iterations=6"]
    more = ["sampler.batch_size=20", "sampler.samples=3", "flow.record_layers=true", "flow.snapshots=1"]
    assert kfx("run", *words, *more, "hydra.run.dir=r")[0] == 0
    first, *_, last = sorted((in_folder / "r" / "snapshots").glob("*.npz"))
    before, after = np.load(first)["test"], np.load(last)["test"]
    nearby = load_run("r").kernel.transform(before * (1 + 1e-12))  # points that the record does not have
    assert np.abs(after - before).max() > 0.01
    np.testing.assert_allclose(nearby, after, atol=1e-6)


@pytest.mark.parametrize("size", [1e155, 1e308])
def test_a_step_without_bounds_never_ends_in_numbers_that_are_none(kfx, in_folder, size):
    words = ["dataset=swiss_roll", "dataset.n_train=40", "sampler.batch_size=20", "optimizer=flow_euler"]
    step = ["flow.step_rule=absolute", f"flow.step_size={size}", "follow.every=1", "optimizer.iterations=4"]
    code, out, _ = kfx("run", *words, *step, "figures=false", "device.precision_check=off", "hydra.run.dir=r")
    assert code == 0
    assert "flow        stopped" in out
    if size > 1e300:
        assert "overshot" in out


def test_snapshots_are_whole(kfx, in_folder, monkeypatch):
    import kfx.evaluation.follower as follower

    def torn(stream, **_):
        stream.write(b"half a file")
        raise OSError(28, "no space")

    monkeypatch.setattr(follower.np, "savez", torn)
    words = ["optimizer=flow_euler", "dataset=three_bumps", "optimizer.iterations=2", "sampler.batch_size=20"]
    code, _, err = kfx("run", *words, "device.precision_check=off", "hydra.run.dir=r")
    assert (code, "storage" in err) == (1, True)
    assert list((in_folder / "r" / "snapshots").iterdir()) == []


def test_what_the_points_do_not_give_is_refused(kfx, in_folder):
    few = ["dataset=digits", "dataset.classes=[2,4]", "dataset.n_test=50", "optimizer=flow_euler"]
    code, _, err = kfx(
        "run", *few, "sampler.batch_size=20", "follow.every=1", "follow.n_interpolation=[1000]", "hydra.run.dir=r"
    )
    assert (code, "follow.n_interpolation" in err) == (2, True)
    code, _, err = kfx("run", "flow=null", "optimizer=flow_euler", "hydra.run.dir=r")
    assert (code, err.startswith("kfx: flow=null: expected field, step_rule")) == (2, True)
    folds = ["dataset=digits", "dataset.n_test=0", "dataset.n_train=20", "evaluation=k_fold", "evaluation.folds=30"]
    code, _, err = kfx("run", *folds, "sampler.batch_size=4", "hydra.run.dir=r")
    assert (code, "evaluation.folds=30: too many for 20 points" in err) == (2, True)
    assert not (in_folder / "r").exists()


def test_layers_lost_since_the_checkpoint_are_noticed(tmp_path):
    rows = Memory(tmp_path)
    euler(4, record_layers=True).fit(RBF(1.4), spirals(), Streams(0), rows)
    rows.layer_path.write_bytes(rows.layer_path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match=r"holds 100 of the \d+ bytes"):
        euler(4, record_layers=True).fit(RBF(1.4), spirals(), Streams(0), Memory(tmp_path, restored=rows.kept[3]))


def test_shapes_that_do_not_fit_a_flow(tmp_path):
    flowed = euler(2).fit(RBF(1.4), spirals(), Streams(0), Memory(tmp_path))
    assert flowed.transform(np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(ValueError, match=r"expected points of shape \(n, 2\), got \(4, 3\)"):
        flowed.transform(np.zeros((4, 3)))


def test_a_hybrids_nesterov_is_equation_2_4(tmp_path):
    """With points that hardly move and one batch: the gradient of each step is taken at the look-ahead parameters."""
    data = synthetic.three_bumps(24, 4, "grid", np.random.default_rng(0))
    x, y, along = (torch.as_tensor(a) for a in (data.x_train, data.y_train, data.x_test))
    make = partial(Loss, rho, NUGGET)
    rate, beta, layers = 0.05, 0.9, 5
    common = (make, Sampler(None), layers, FlowSettings(Interpolation(None, NUGGET)))
    still = StepRule("constant", 1e-200)
    flow = HybridFlow(*common, rule=still, parameters=Nesterov(rate, beta), space="raw")
    record = Memory(tmp_path)
    fitted = flow.fit(RBF(1.0), (x, y, along), Streams(0), record)
    loss, batches, sampler = make(RBF(1.0), x, y), Streams(0)["batches"], Sampler(None).start(x, y)
    theta, z = np.array([1.0]), np.zeros(1)
    for layer in range(layers):
        ahead = theta - rate * beta * z
        np.testing.assert_allclose(record[layer][1].vector, ahead, rtol=1e-12)
        z = beta * z + loss(ahead, sampler.draw(batches, layer)).gradient
        theta = theta - rate * z
    np.testing.assert_allclose(fitted.flat, theta, rtol=1e-12)
