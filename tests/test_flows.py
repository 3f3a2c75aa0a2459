"""Flows: the field against differences, steps, layers as maps, and how a flow ends when the arithmetic does."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.integrate import solve_ivp

from kfx import load_run
from kfx.config.choices import METHODS
from kfx.data import synthetic
from kfx.flows.euler import EulerFlow, HybridFlow
from kfx.flows.flow import FlowSettings
from kfx.flows.flowed import FlowedKernel
from kfx.flows.follower import linearly_separable, mean_squared_distances
from kfx.flows.layers import StepRule, crossings, runge_kutta_step
from kfx.flows.runge_kutta import RungeKuttaFlow
from kfx.flows.vector_field import (
    Interpolation,
    Velocity,
)
from kfx.kernels import RBF, Laplace, Linear, Matern, Polynomial, RationalQuadratic, Regularized
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import interpolation_error, rho
from kfx.optimizers.gradient import Nesterov
from kfx.optimizers.loss import Loss
from kfx.outcomes import CheckpointError, Event
from kfx.plots.flow import limits
from kfx.sampling.samplers import Batch, FixedSampler
from tests.records import MemoryRecord

NUGGET = Regularization(1e-4, "absolute")


class Memory(MemoryRecord):
    def row(self, iteration, evaluation, kernel_evaluations, *, told=None, events=(), diagnostics=None):
        self.append((iteration, evaluation, {**(diagnostics or {})}, tuple(events)))


def spirals(n=40):
    data = synthetic.swiss_roll(n, 20, "symmetric", (np.pi / 2, 5 * np.pi / 2))
    return tuple(torch.as_tensor(part) for part in (data.x_train, data.y_train, data.x_test))


def bumps(n=60):
    data = synthetic.three_bumps(n, 25, "grid", np.random.default_rng(0))
    return tuple(torch.as_tensor(part) for part in (data.x_train, data.y_train, data.x_test))


def settings(**changes):
    return FlowSettings(**{"interpolation": Interpolation(None, NUGGET), **changes})


def euler(iterations=12, batch=None, objective=rho, rule=None, test_step="train", over="batch", **changes):
    loss = partial(Loss, objective, NUGGET)
    rule = rule or StepRule("absolute", 0.05)
    return EulerFlow(
        loss, FixedSampler(batch), iterations, settings(**changes), rule=rule, test_step=test_step, over=over
    )


def runge_kutta(iterations=4, batch=30, method="RK45", **changes):
    loss = partial(Loss, rho, NUGGET)
    options = {"rtol": 1e-3, "atol": 1e-6, "max_evaluations": 2000}
    return RungeKuttaFlow(loss, FixedSampler(batch), iterations, settings(**changes), method=method, **options)


# ---- the field


@pytest.mark.parametrize(
    "kernel",
    [
        RBF(1.3),
        RationalQuadratic(0.8, 1.1),
        Matern(1.5, 0.5),
        Matern(1.5, 1.5),
        Matern(1.5, 2.5),
        Laplace(1.5),
        RBF(1.0) + 0.5 * Matern(2.0),
        Linear(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("objective", [rho, interpolation_error], ids=["rho", "e2"])
def test_the_field_is_minus_the_derivative(kernel, objective):
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(24, 3)))
    y = torch.as_tensor(rng.normal(size=(24, 4)))
    batch = Batch(np.arange(24), 12)
    loss = Loss(objective, Regularization(1e-2, "centered"), kernel, x, y)
    velocity = Velocity(loss, Interpolation(None, NUGGET), complete=False)
    evaluation = velocity.evaluate(kernel, x, y, batch)
    g, _ = velocity.of(evaluation, kernel, x)
    assert evaluation.objective == pytest.approx(loss.at(kernel, x, y, batch, False).objective)
    scale = float(g.abs().max())
    for i, j in [(0, 0), (5, 2), (13, 1), (23, 0)]:
        up, down = x.clone(), x.clone()
        up[i, j] += 1e-5
        down[i, j] -= 1e-5
        slope = (
            loss.at(kernel, up, y, batch, False).objective - loss.at(kernel, down, y, batch, False).objective
        ) / 2e-5
        assert float(g[i, j]) == pytest.approx(-slope, rel=1e-6, abs=1e-7 * scale)


def test_a_step_lowers_rho_of_its_batch_to_first_order():
    x, y, _ = spirals()
    batch = Batch(np.random.default_rng(0).permutation(40), 20)
    x, y = x[batch.indices], y[batch.indices]
    loss = Loss(rho, NUGGET, RBF(1.4), x, y)
    velocity = Velocity(loss, Interpolation(None, NUGGET), complete=False)
    here = velocity.evaluate(RBF(1.4), x, y, batch)
    g, _ = velocity.of(here, RBF(1.4), x)
    for step in (1e-4, 1e-5):
        there = loss.at(RBF(1.4), x + step * g, y, batch, gradient=False)
        assert here.rho - there.rho == pytest.approx(step * float(g.square().sum()), rel=300 * step)


def test_the_interpolated_field_takes_its_values_at_the_batch():
    x, _, _ = spirals()
    g = torch.as_tensor(np.random.default_rng(0).normal(size=(40, 2)))
    field = Interpolation(RBF(0.2), Regularization(0.0, "absolute")).field(RBF(9.0), Factored(RBF(9.0).gram(x)), x, g)
    torch.testing.assert_close(field(x), g)
    assert field.kernel.parameters["sigma"] == 0.2, "its own kernel, not the flow's"


# ---- steps


def test_step_rules():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    speeds = torch.tensor([9.0, 2.0, 1.0])
    relative = StepRule("relative", 0.1)
    assert relative.step(x, speeds, 0) == pytest.approx(0.1 * min(5 / 2, 1 / 1)), "the point at 0 is left out"
    assert StepRule("absolute", 0.1).step(x, speeds, 0) == pytest.approx(0.1 / 9)
    assert StepRule("constant", 0.1).step(x, speeds, 0) == 0.1
    assert relative.step(x, torch.zeros(3), 0) == np.inf
    decaying = StepRule("constant", 0.1, decay_after=1000)
    assert [decaying.step(x, speeds, n - 1) for n in (1, 1000, 4000)] == pytest.approx([0.1, 0.1, 0.05])


@pytest.mark.parametrize("over", ["batch", "all"])
def test_no_point_that_bounds_the_step_moves_further(over, tmp_path):
    x, y, along = spirals()
    rows = Memory(tmp_path)
    euler(6, batch=20, over=over).fit(RBF(1.4), (x, y, along), Streams(0), rows)
    moves = [float((rows.positions[i + 1][0] - rows.positions[i][0]).norm(dim=1).max()) for i in range(6)]
    assert [row[2]["displacement"] for row in rows] == pytest.approx(moves)
    if over == "all":
        assert moves == pytest.approx([0.05] * 6)
    else:
        assert max(moves) > 0.0501, "a point outside of the batch"


@pytest.mark.parametrize("method", METHODS)
def test_runge_kutta_steps_are_scipys(method):
    def slope(t, state):
        return np.array([state[1], -np.sin(state[0])])

    solution = solve_ivp(slope, (0, 1), [1.0, 0.2], method=method, rtol=1e-4)
    state = torch.tensor([1.0, 0.2], dtype=torch.float64)
    for start, end in zip(solution.t[:-1], solution.t[1:], strict=True):
        state = runge_kutta_step(lambda s: torch.as_tensor(slope(0, s.numpy())), state, end - start, method)
    np.testing.assert_allclose(state, solution.y[:, -1], rtol=1e-13)


# ---- what is a map


@pytest.mark.parametrize("make", [euler, runge_kutta], ids=["euler", "runge_kutta"])
def test_training_points_go_through_the_layers_as_they_were_trained(make, tmp_path):
    x, y, along = bumps()
    rows = Memory(tmp_path)
    flowed = make(batch=30, complete=True, record_layers=True).fit(RBF(4.0), (x, y, along), Streams(0), rows)
    last_x, last_along = rows.positions[max(rows.positions)]
    assert float((last_x - x).abs().max()) > 1e-3
    for points, ended in ((x, last_x), (along, last_along)):
        torch.testing.assert_close(flowed.transform(points), ended, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(flowed._through_layers(points), ended, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(flowed.gram(x, along), flowed.kernel.gram(last_x, last_along))
    new = along[:3] + 0.01
    one_by_one = torch.cat([flowed.transform(point[None]) for point in new])
    torch.testing.assert_close(flowed.transform(new), one_by_one, rtol=1e-9, atol=1e-9)


def test_in_original_mode_the_batch_takes_its_own_field(tmp_path):
    x, y, along = bumps()
    rows = Memory(tmp_path)
    flowed = euler(batch=30, record_layers=True).fit(RBF(1.0), (x, y, along), Streams(0), rows)
    ended = rows.positions[12][0]
    torch.testing.assert_close(flowed.transform(x), ended)
    assert float((flowed._through_layers(x) - ended).abs().max()) > 1e-3, "no map of positions alone"
    torch.testing.assert_close(flowed._through_layers(along), rows.positions[12][1])


def test_the_complete_field_does_not_cross(tmp_path):
    flows = {"euler": partial(euler, 60, 40, rule=StepRule("relative", 0.1)), "rk45": partial(runge_kutta, 15, 40)}
    for make in flows.values():
        crossed = {}
        for complete in (False, True):
            rows = Memory(tmp_path)
            make(complete=complete).fit(RBF(4.0), bumps(60), Streams(1), rows)
            assert rows[-1][3] == ()
            crossed[complete] = sum(row[2]["crossings"] for row in rows)
        assert crossed[True] == 0
        assert crossed[False] > 0
    before, after = torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([[0.0], [2.0], [1.5]])
    assert crossings(before, after) == 1
    assert np.isnan(crossings(torch.zeros(3, 2), torch.zeros(3, 2)))


@pytest.mark.parametrize("test_step", ["test", "min"])
def test_test_points_may_take_steps_of_their_own(test_step, tmp_path):
    x, y, along = spirals()
    rows = Memory(tmp_path)
    flow = euler(3, batch=20, record_layers=True, test_step=test_step)
    flowed = flow.fit(RBF(1.4), (x, y, along), Streams(0), rows)
    first = float((rows.positions[1][1] - along).norm(dim=1).max())
    if test_step == "test":
        assert first == pytest.approx(0.05)
    else:
        assert first <= 0.05 + 1e-12
    torch.testing.assert_close(flowed._through_layers(along), rows.positions[3][1])


# ---- saved, resumed


@pytest.mark.parametrize("kind", ["euler", "runge_kutta", "hybrid"])
def test_save_load_and_resume(kind, tmp_path):
    data = spirals(30)

    def make():
        if kind == "runge_kutta":
            return runge_kutta(5, 20, record_layers=True)
        if kind == "euler":
            return euler(9, 20, record_layers=True, remove_merged=1e-3)
        common = (partial(Loss, rho, NUGGET), FixedSampler(20), 9, settings(record_layers=True))
        return HybridFlow(*common, rule=StepRule(), parameters=Nesterov(0.05, 0.9), space="raw")

    rows = Memory(tmp_path)
    whole = make().fit(RBF(1.4), data, Streams(0), rows)
    if kind == "hybrid":
        assert whole.parameters["sigma"] != 1.4
    new = torch.as_tensor(np.random.default_rng(0).normal(size=(4, 2)))
    there = whole.transform(new)
    whole.save(tmp_path / "flow.npz")
    flow = make()
    loss = Loss(rho, NUGGET, RBF(1.4), *data[:2])
    loaded = FlowedKernel.load(tmp_path / "flow.npz", RBF(1.0), partial(flow.recorded, rows.layer_path, RBF(1.0), loss))
    assert loaded.parameters == whole.parameters
    torch.testing.assert_close(loaded.transform(new), there, rtol=0, atol=0)
    torch.testing.assert_close(loaded.gram(data[0]), whole.gram(data[0]), rtol=0, atol=0)

    stopped = Memory(tmp_path, restored=rows.kept[3])
    again = make().fit(RBF(1.4), data, Streams(0), stopped)
    assert [row[0] for row in stopped] == [row[0] for row in rows[3:]]
    assert [row[1].rho for row in stopped] == [row[1].rho for row in rows[3:]]
    torch.testing.assert_close(
        again.transform(torch.cat([data[0], new])), torch.cat([whole.transform(data[0]), there]), rtol=0, atol=0
    )


def test_points_that_did_not_flow_need_layers(tmp_path):
    flowed = euler().fit(RBF(1.4), spirals(), Streams(0), Memory(tmp_path))
    with pytest.raises(ValueError, match=r"flow\.record_layers=true"):
        flowed.gram(np.ones((2, 2)))
    with pytest.raises(ValueError, match="no gradient to its inputs"):
        flowed.pullback(spirals()[0])[1](torch.eye(40, dtype=torch.float64), inputs=True)


# ---- how a flow ends


FLOWS = {
    "relative": lambda: euler(batch=None),
    "absolute": lambda: euler(batch=None, rule=StepRule("absolute", 0.1)),
    "constant": lambda: euler(batch=None, rule=StepRule("constant", 0.1)),
    "over all": lambda: euler(batch=30, over="all"),
    "runge_kutta": runge_kutta,
}


@pytest.mark.parametrize("flow", FLOWS)
def test_a_field_that_vanishes_stops_the_flow(flow, tmp_path):
    x, y, along = spirals()
    rows = Memory(tmp_path)
    flowed = FLOWS[flow]().fit(RBF(1e-3), (x, y, along), Streams(0), rows)
    assert rows[-1][1].events == (Event.FIELD_VANISHED,)
    assert rows[-1][3] == (Event.FLOW_STOPPED,)
    assert rows.reason[0] == 0
    torch.testing.assert_close(flowed.transform(x), x)


@pytest.mark.parametrize("flow", FLOWS)
def test_points_that_have_all_merged_stop_the_flow(flow, tmp_path):
    _, y, along = spirals()
    rows = Memory(tmp_path)
    FLOWS[flow]().fit(RBF(1.0), (torch.ones(40, 2, dtype=torch.float64), y, along), Streams(0), rows)
    assert rows[-1][1].events == (Event.COLLAPSED,)
    assert "all points of the batch have merged" in rows.reason[1]


def test_a_flow_that_stopped_stays_there_when_it_is_resumed(tmp_path):
    def stiff():
        flow = runge_kutta(30, 20)
        flow.max_evaluations = 26
        return flow

    data, rows = bumps(), Memory(tmp_path)
    stiff().fit(RBF(2.0), data, Streams(0), rows)
    last = rows[-1][0]
    assert rows[-1][3] == (Event.FLOW_STOPPED,)
    assert 0 < last < 29
    again = Memory(tmp_path, restored=rows.kept[last])
    stiff().fit(RBF(2.0), data, Streams(0), again)
    assert list(again) == []
    torch.testing.assert_close(again.positions[last], rows.positions[last], rtol=0, atol=0)


def test_an_overshooting_step_stops_the_flow(tmp_path):
    x, y, along = spirals()
    rows = Memory(tmp_path)
    flow = euler(50, batch=None, rule=StepRule("constant", 1e300))
    flowed = flow.fit(Polynomial(3), (x, y, along), Streams(0), rows)
    assert rows[-1][3] == (Event.FLOW_STOPPED,)
    assert rows[-1][1].events[0] in (Event.OVERSHOT, Event.DIVERGED, Event.NOT_POSITIVE_DEFINITE)
    assert bool(flowed.transform(x).isfinite().all())


def test_a_layer_too_stiff_stops_the_flow(tmp_path):
    rows = Memory(tmp_path)
    flow = runge_kutta(3)
    flow.max_evaluations = 5
    flow.fit(RBF(1.0), bumps(), Streams(0), rows)
    assert rows[-1][1].events == (Event.OVERSHOT,)
    assert "more than 5 evaluations" in rows[-1][1].detail


def test_merged_points_leave_the_batches(tmp_path):
    x, y, along = spirals()
    x[1], x[21] = x[0] + 1e-6, x[2]  # one pair of a class, one of two classes
    y[21] = -y[2]
    rows = Memory(tmp_path)
    euler(1, remove_merged=1e-4).fit(RBF(1.4), (x, y, along), Streams(0), rows)
    assert set(rows.kept[1][1]["own"]["candidates"]) == set(range(40)) - {1}
    same = torch.zeros(40, 2, dtype=torch.float64), torch.ones(40, 1, dtype=torch.float64), along
    rows = Memory(tmp_path)
    euler(3, remove_merged=1e-4).fit(RBF(1.4), same, Streams(0), rows)
    assert rows[-1][1].events == (Event.COLLAPSED,)


def test_near_points_are_told_apart_in_single_precision(tmp_path):
    x, y, along = spirals()
    x[1] = x[0] + 2e-4
    rows = Memory(tmp_path)
    euler(1, remove_merged=1e-4).fit(RBF(1.4), (x.float(), y, along.float()), Streams(0), rows)
    assert set(rows.kept[1][1]["own"]["candidates"]) == set(range(40))


def test_points_are_known_by_all_their_digits(tmp_path):
    x, y, along = spirals()
    far = x + 1e7
    flowed = euler(3).fit(RBF(1.4), (far, y, along), Streams(0), rows := Memory(tmp_path))
    torch.testing.assert_close(flowed.transform(far), rows.positions[3][0], rtol=0, atol=0)
    x[0] = torch.tensor([0.0, 1.0])
    flowed = euler(3).fit(RBF(1.4), (x, y, along), Streams(0), rows := Memory(tmp_path))
    found = flowed.transform(torch.tensor([[-0.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(found, rows.positions[3][0][:1], rtol=0, atol=0)


@pytest.mark.parametrize("make", [euler, runge_kutta])
def test_layers_in_single_precision_move_points_in_double(make, tmp_path):
    data = tuple(part.float() for part in spirals())
    data = data[0], data[1].double(), data[2]
    flowed = make(3, record_layers=True).fit(RBF(1.4), data, Streams(0), Memory(tmp_path))
    new = np.random.default_rng(0).normal(size=(4, 2))
    moved = flowed.transform(new)
    assert moved.dtype == np.float64
    np.testing.assert_allclose(moved, flowed.transform(new.astype(np.float32)), atol=1e-3)


def test_fewer_candidates_than_a_batch_stop_the_flow(tmp_path):
    rows = Memory(tmp_path)
    euler(5, batch=30, remove_merged=3.0).fit(RBF(1.4), spirals(), Streams(0), rows)
    assert rows[-1][1].events == (Event.COLLAPSED,)


def test_a_flowed_kernel_keeps_its_own_lambda(tmp_path):
    start = Regularized(RBF(1.4), Regularization(0.5, "absolute"))
    flowed = euler(2).fit(start, spirals(), Streams(0), Memory(tmp_path))
    assert flowed.own_regularization == Regularization(0.5, "absolute")


# ---- what is measured


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
    sides[np.argmax(x[:, 0] + 2 * x[:, 1])] = 0
    assert not linearly_separable(x, sides)


def test_a_run_of_a_flow_leaves_tables_pictures_and_a_film(kfx, in_folder):
    words = ["+experiment=owhadi_yoo/swiss_roll_nugget", "optimizer.iterations=6", "dataset.n_train=30", "seed=1"]
    small = ["flow.evaluate_every=3", "flow.snapshots=3", "flow.evaluate_last=2", "device.precision_check=off"]
    assert kfx("run", *words, *small, "hydra.run.dir=r")[0] == 0
    table = pd.read_csv("r/flow.csv")
    assert sorted(table["layer"].unique()) == [0, 3, 6], "of 6 layers the last alone"
    assert {"error", "distance_ratio", "linearly_separable"} <= set(table["metric"])
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


def test_several_lambdas_of_evaluation_stay_apart(kfx, in_folder):
    words = ["--smoke", "+experiment=khalid/three_bumps_prediction", "flow.evaluate_every=1", "flow.evaluate_last=2"]
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
    often = ["flow.evaluate_every=3", "flow.evaluate_last=4", "device.precision_check=off", "figures=false"]
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


@pytest.mark.parametrize("size", [1e155, 1e308])
def test_a_step_without_bounds_never_ends_in_numbers_that_are_none(kfx, in_folder, size):
    words = ["dataset=swiss_roll", "dataset.n_train=40", "sampler.batch_size=20", "optimizer=flow_euler"]
    step = ["flow.step_rule=absolute", f"flow.step_size={size}", "flow.evaluate_every=1", "optimizer.iterations=4"]
    code, out, _ = kfx("run", *words, *step, "figures=false", "device.precision_check=off", "hydra.run.dir=r")
    assert code == 0
    assert "flow        stopped" in out
    if size > 1e300:
        assert "overshot" in out


def test_snapshots_are_whole(kfx, in_folder, monkeypatch):
    import kfx.flows.follower as follower

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
    code, _, err = kfx("run", *few, "sampler.batch_size=20", "flow.n_interpolation=[1000]", "hydra.run.dir=r")
    assert (code, "flow.n_interpolation" in err) == (2, True)
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
    common = (make, FixedSampler(None), layers, FlowSettings(Interpolation(None, NUGGET)))
    still = StepRule("constant", 1e-200)
    flow = HybridFlow(*common, rule=still, parameters=Nesterov(rate, beta), space="raw")
    record = Memory(tmp_path)
    fitted = flow.fit(RBF(1.0), (x, y, along), Streams(0), record)
    loss, batches, sampler = make(RBF(1.0), x, y), Streams(0)["batches"], FixedSampler(None).start(x, y)
    theta, z = np.array([1.0]), np.zeros(1)
    for layer in range(layers):
        ahead = theta - rate * beta * z
        np.testing.assert_allclose(record[layer][1].vector, ahead, rtol=1e-12)
        z = beta * z + loss(ahead, sampler.draw(batches, layer)).gradient
        theta = theta - rate * z
    np.testing.assert_allclose(fitted.flat, theta, rtol=1e-12)
