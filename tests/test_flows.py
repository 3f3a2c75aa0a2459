"""Flows: the field against differences, steps, layers as maps, and how a flow ends when the arithmetic does."""

from __future__ import annotations

import warnings
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from kfx.config.choices import METHODS
from kfx.flows.euler import EulerFlow, HybridFlow
from kfx.flows.flowed import FlowedKernel
from kfx.flows.integration import integrate, runge_kutta_step
from kfx.flows.layers import StepRule, crossings
from kfx.flows.vector_field import (
    Interpolation,
    Velocity,
)
from kfx.kernels import RBF, Laplace, Linear, Matern, RationalQuadratic
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import interpolation_error, rho
from kfx.optimizers.gradient import Nesterov
from kfx.optimizers.loss import Loss
from kfx.outcomes import ConfigError, Event, NumericalError
from kfx.sampling.samplers import Batch, Sampler
from tests.flow_parts import NUGGET, Memory, bumps, euler, runge_kutta, settings, spirals


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


def test_an_averaged_flow_follows_the_mean_over_samples(tmp_path):
    """Owhadi & Yoo 2019, eq. 7.6, with three samples π in place of the expectation."""
    x, y, _ = spirals()
    kernel, sampler = RBF(1.4), Sampler(30, samples=3)
    sampler.start(x, y)
    batch, loss = sampler.draw(np.random.default_rng(0), 0), Loss(rho, NUGGET, kernel, x, y)
    mean = loss.at(kernel, *batch.of(x, y), batch, points=True)
    each = []
    for order in (np.arange(30), *batch.orders):
        one = Batch(batch.indices[order], batch.sample_size)
        found = loss.at(kernel, *one.of(x, y), one, points=True)
        each.append((found.rho, found.to_points[np.argsort(order)]))
    assert len(each) == 3
    assert mean.rho == pytest.approx(np.mean([value for value, _ in each]))
    torch.testing.assert_close(mean.to_points, torch.stack([slope for _, slope in each]).mean(dim=0))
    rows = Memory(tmp_path)
    averaged = EulerFlow(
        partial(Loss, rho, NUGGET), Sampler(30, samples=3), 1, settings(), rule=StepRule("constant", 0.05)
    )
    averaged.fit(kernel, (x, y, x), Streams(0), rows)
    sampler.start(x, y)
    batch = sampler.draw(Streams(0)["batches"], 0)
    slope = loss.at(kernel, *batch.of(x, y), batch, points=True).to_points
    moved = (rows.positions[1][0] - rows.positions[0][0])[torch.as_tensor(batch.indices)]
    torch.testing.assert_close(moved, -0.05 * slope)


# ---- steps


def test_step_rules():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]])
    speeds = torch.tensor([9.0, 2.0, 1.0])
    relative = StepRule("relative", 0.1)
    assert relative.step(x, speeds, 0) == pytest.approx(0.1 * min(5 / 2, 1 / 1)), "the point at 0 is left out"
    assert StepRule("absolute", 0.1).step(x, speeds, 0) == pytest.approx(0.1 / 9)
    assert StepRule("relative_to_largest", 0.1).step(x, speeds, 0) == pytest.approx(0.1 * 5 / 9)
    assert StepRule("constant", 0.1).step(x, speeds, 0) == 0.1
    assert relative.step(x, torch.zeros(3), 0) == np.inf
    slow = torch.tensor([9.0, 2e-7, 0.1])  # the second counts as one of speed 1
    assert StepRule("relative", 0.1, unit_below=1e-6).step(x, slow, 0) == pytest.approx(0.1 * 5)
    assert relative.step(x, slow, 0) == pytest.approx(0.1 * 10)
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

    first, calls = torch.tensor([1.0, 0.2], dtype=torch.float64), []

    def counted(state):
        calls.append(state)
        return torch.as_tensor(slope(0, state.numpy()))

    for rtol, pace in ((1e-4, 1.0), (1e-9, 40.0), (1e-20, 1.0)):  # the last is below round-off, and is raised
        with warnings.catch_warnings(action="ignore"):
            solution = solve_ivp(
                lambda t, s, pace=pace: pace * slope(t, s), (0, 1), first, method=method, rtol=rtol, atol=1e-8
            )
        calls.clear()
        end, times = integrate(lambda s, pace=pace: pace * counted(s), first, method, rtol, 1e-8)
        assert len(calls) == solution.nfev
        np.testing.assert_allclose(times, solution.t, rtol=1e-5)  # an error estimate may itself be round-off
        np.testing.assert_allclose(end, solution.y[:, -1], rtol=1e-11)
        state = first
        for start, end in pairwise(times):
            state, _ = runge_kutta_step(lambda s, pace=pace: pace * counted(s), state, end - start, method)
        np.testing.assert_allclose(state, solution.y[:, -1], rtol=1e-11)


@pytest.mark.parametrize("factor", [float("inf"), 1e308, float("nan")])
@pytest.mark.parametrize("method", METHODS)
def test_a_field_beyond_numbers_ends_the_integration(factor, method):
    with pytest.raises(NumericalError):
        integrate(lambda s: s * factor, torch.ones(3, 1, dtype=torch.float64), method, 1e-3, 1e-6)


def test_a_step_below_round_off_ends_the_integration():
    with pytest.raises(NumericalError, match=r"the integration ended at t = 0\.5: the step would be less than"):
        integrate(lambda s: s * s, torch.tensor([2.0], dtype=torch.float64), "RK45", 1e-6, 1e-9)


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


@pytest.mark.slow
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
        common = (partial(Loss, rho, NUGGET), Sampler(20), 9, settings(record_layers=True))
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
    with pytest.raises(ConfigError, match=r"flow\.record_layers=false: no layers were recorded"):
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
