"""Optimizers on functions whose minima are known, and what they do when the arithmetic fails."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from kfx import load_run
from kfx.kernels import RBF
from kfx.objectives import loo, rho
from kfx.optimizers.gradient import SGD, Adam, GradientDescent, Nesterov
from kfx.optimizers.loss import Loss
from kfx.optimizers.space import Space, random_within
from kfx.outcomes import Event, NumericalError
from kfx.regularization import Regularization
from kfx.sampling import Batch, DynamicSampler, FixedSampler, LinearSampler, sample_size
from kfx.streams import Streams


class Rows(list):
    """A record that keeps its rows in memory."""

    def restore(self, streams):
        return None

    def checkpoint(self, iteration, streams, state):
        pass

    def row(self, iteration, evaluation, kernel_evaluations, *, told=None, events=(), diagnostics=None):
        self.append((iteration, evaluation, kernel_evaluations, tuple(events)))


def bumps(n=40):
    x = torch.linspace(-3, 3, n, dtype=torch.float64)[:, None]
    return x, torch.sin(2 * x) + torch.cos(3 * x)


def descent(rule, objective=rho, **changes):
    settings = {"iterations": 60, "space": "log", "final": "last", "final_window": 5, "max_reinitializations": 2}
    loss = partial(Loss, objective, Regularization(1e-6, "centered"))
    return GradientDescent(loss, FixedSampler(30, 0.5), rule, **{**settings, **changes})


def mean_rho(kernel, batches=20):
    """ρ of a kernel over fixed batches."""
    x, y = bumps()
    loss = Loss(rho, Regularization(1e-6, "centered"), kernel, x, y)
    stream = Streams(99)["batches"]
    return np.mean([loss(kernel.flat, FixedSampler(30, 0.5).draw(40, stream), False).rho for _ in range(batches)])


@pytest.mark.parametrize(
    "rule", [SGD(0.1), Nesterov(0.02, 0.9), Adam(0.1, 0.9, 0.999, 1e-8)], ids=lambda r: type(r).__name__
)
@pytest.mark.parametrize("space", ["log", "raw"])
def test_every_rule_lowers_rho(rule, space):
    start = RBF(0.25)
    fitted = descent(rule, space=space).fit(start, bumps(), Streams(0), Rows())
    assert mean_rho(fitted) < 0.65 * mean_rho(start)


def test_nesterov_against_equation_2_4():
    """z ← βz + ∇(θ − ηβz), θ ← θ − ηz on a quadratic, written out."""
    rule, theta = Nesterov(0.1, 0.9), np.array([2.0])
    z, expected = 0.0, 2.0
    for _ in range(20):
        gradient = 3 * (expected - 0.1 * 0.9 * z)
        z = 0.9 * z + gradient
        expected = expected - 0.1 * z
        theta = rule.step(theta, 3 * rule.point(theta))
    assert theta[0] == pytest.approx(expected, rel=1e-14)


def test_the_trace_holds_the_look_ahead_point():
    rows, rule = Rows(), Nesterov(0.05, 0.9)
    descent(rule, iterations=3, space="raw").fit(RBF(0.5), bumps(), Streams(0), rows)
    (first, second) = rows[0][1], rows[1][1]
    z = first.gradient
    theta = first.vector - 0.05 * z
    np.testing.assert_allclose(second.vector, theta - 0.05 * 0.9 * z, rtol=1e-14)


def test_adam_against_torch():
    parameter = torch.tensor([1.0, -2.0], dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.Adam([parameter], lr=0.05)
    ours, theta = Adam(0.05, 0.9, 0.999, 1e-8), np.array([1.0, -2.0])
    for _ in range(25):
        theirs.zero_grad()
        (parameter**4).sum().backward()
        theirs.step()
        theta = ours.step(theta, 4 * theta**3)
    np.testing.assert_allclose(theta, parameter.detach().numpy(), rtol=1e-12)


def scripted(values):
    """An objective that yields the given values, or raises them; its gradient is that of rho."""
    remaining = iter(values)

    def objective(gram, y, n_c, regularization, cotangent=True):
        value = next(remaining)
        if isinstance(value, Exception):
            raise value
        return value, rho(gram, y, n_c, regularization)[1]

    return objective


def test_a_failed_factorisation_starts_anew():
    failure = NumericalError(Event.NOT_POSITIVE_DEFINITE, "scripted")
    rows = Rows()
    objective = scripted([0.5, failure, 0.4, float("nan"), 0.3, 0.2])
    fitted = descent(SGD(0.1), objective, iterations=6).fit(RBF(0.5), bumps(), Streams(0), rows)
    events = [(*evaluation.events, *then) for _, evaluation, _, then in rows]
    assert events[1] == (Event.NOT_POSITIVE_DEFINITE, Event.REINITIALIZED)
    assert events[3] == (Event.DIVERGED, Event.REINITIALIZED)
    assert events.count(()) == 4
    assert rows[2][1].vector != pytest.approx(rows[1][1].vector)
    assert np.isfinite(fitted.flat).all()


def test_too_many_failures_end_the_fit_with_the_reason():
    rows = Rows()
    with pytest.raises(NumericalError, match="scripted") as caught:
        descent(SGD(0.1), scripted([NumericalError(Event.NOT_POSITIVE_DEFINITE, "scripted")] * 9)).fit(
            RBF(0.5), bumps(), Streams(0), rows
        )
    assert caught.value.event is Event.NOT_POSITIVE_DEFINITE
    assert len(rows) == 3, "two new starts, then the end"
    assert rows[-1][3] == ()


def test_final_best_is_the_end_of_the_best_window():
    values = [0.9, 0.8, 0.1, 0.1, 0.9, 0.9]
    rows = Rows()
    fitted = descent(SGD(0.1), scripted(values), iterations=6, final="best", final_window=2).fit(
        RBF(0.5), bumps(), Streams(0), rows
    )
    np.testing.assert_array_equal(fitted.flat, rows[3][1].vector)


def test_bounds_hold():
    kernel = RBF(0.5, bounds={"sigma": (0.45, 0.55)})
    rows = Rows()
    descent(SGD(50.0), space="raw").fit(kernel, bumps(), Streams(0), rows)
    visited = np.array([evaluation.vector[0] for _, evaluation, *_ in rows])
    assert visited.min() >= 0.45
    assert visited.max() <= 0.55


def test_space_and_random_starts():
    bounds = np.array([[1e-3, 200.0], [0.0, 5.0]])
    space = Space("log", bounds)
    vector = np.array([3.0, 0.5])
    np.testing.assert_allclose(space.to_parameters(space.to_coordinates(vector)), vector)
    np.testing.assert_allclose(space.gradient(vector, np.array([2.0, 2.0])), 2 * vector)
    assert np.isnan(space.project(np.array([np.nan, 0.0]))[0])
    draws = np.array([random_within(bounds, np.random.default_rng(i)) for i in range(200)])
    assert np.all((draws >= bounds[:, 0]) & (draws <= bounds[:, 1]))
    decades = np.log10(draws[:, 0])
    assert np.mean(decades) == pytest.approx(np.mean(np.log10(bounds[0])), abs=4 * np.std(decades) / np.sqrt(200))


def test_batches_lead_with_their_sample_and_follow_the_seed():
    sampler = FixedSampler(10, 0.3)
    batch = sampler.draw(50, Streams(3)["batches"])
    assert batch.sample_size == 3
    assert len(set(batch.indices)) == 10
    np.testing.assert_array_equal(batch.indices, sampler.draw(50, Streams(3)["batches"]).indices)
    assert not np.array_equal(batch.indices, sampler.draw(50, Streams(4)["batches"]).indices)
    assert FixedSampler(None, 0.5).draw(7, Streams(0)["batches"]).indices.shape == (7,)
    assert [sample_size(2, 0.01), sample_size(2, 0.99), sample_size(600, 0.5)] == [1, 1, 300]


def test_streams_do_not_know_each_other():
    alone, both = Streams(0), Streams(0)
    both["data"].random(1000)
    np.testing.assert_array_equal(alone["batches"].random(5), both["batches"].random(5))
    assert not np.array_equal(Streams(0)["data"].random(5), Streams(0)["batches"].random(5))


def test_a_linear_schedule_goes_from_end_to_end():
    sampler = LinearSampler(40, 0.1, 0.5, iterations=5)
    rng = np.random.default_rng(0)
    assert [sampler.draw(60, rng, i).sample_size for i in range(5)] == [4, 8, 12, 16, 20]
    assert LinearSampler(40, 0.3, 0.5, iterations=1).proportion(0) == 0.3


def test_a_dynamic_schedule_follows_the_last_rhos():
    sampler = DynamicSampler(100, window=2, floor=0.1)
    rng = np.random.default_rng(0)
    assert sampler.draw(100, rng).sample_size == sampler.draw(100, rng).half_size == 50
    sampler.observe(0.2)
    assert sampler.proportion(1) == pytest.approx(0.4)
    sampler.observe(float("nan"))
    sampler.observe(0.6)
    assert sampler.proportion(2) == pytest.approx(0.5 * (1 - 0.4))
    for value in (0.9, 1.0):
        sampler.observe(value)
    assert sampler.proportion(3) == 0.1
    other = DynamicSampler(100, window=2, floor=0.1)
    other.restore(sampler.state())
    assert other.proportion(4) == 0.1
    other.restore([])
    assert other.proportion(0) == 0.5


@pytest.mark.parametrize("objective", [rho, loo], ids=["rho", "loo"])
def test_the_half_sample_is_measured_on_the_same_batch(objective):
    x, y = bumps()
    loss = Loss(objective, Regularization(1e-6, "centered"), RBF(0.7), x, y)
    sampler = DynamicSampler(30, window=3, floor=0.05)
    sampler.observe(0.5)
    batch = sampler.draw(40, np.random.default_rng(0))
    assert (batch.sample_size, batch.half_size) == (8, 15)
    found = loss(np.array([0.7]), batch)
    again = [Batch(batch.indices, size) for size in (8, 15)]
    plain = Loss(rho, Regularization(1e-6, "centered"), RBF(0.7), x, y)
    assert [found.rho, found.rho_half] == pytest.approx([plain(np.array([0.7]), each).rho for each in again], rel=1e-12)
    assert np.isfinite(found.gradient).all()


def test_a_dynamic_run_shows_its_sample(kfx):
    words = ["sampler=dynamic", "sampler.batch_size=40", "sampler.window=3", "optimizer=adam", "optimizer.iterations=8"]
    small = ["dataset.n_train=120", "dataset.n_test=60", "figures=false", "device.precision_check=off"]
    assert kfx("run", *words, *small, "hydra.run.dir=r")[0] == 0
    sizes = load_run("r").trace["diagnostic.sample_size"]
    assert sizes[0] == 20
    assert sizes[1:].max() < 20
