"""Optimizers on functions whose minima are known, and what they do when the arithmetic fails."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import KFold, cross_val_score

from kfx import load_run
from kfx.evaluation.cross_validation import choose_regularization
from kfx.evaluation.held_out import mean_objectives
from kfx.kernels import RBF, Linear, Matern, RationalQuadratic, Regularized, Scaled, Sum
from kfx.kernels.space import Space, random_within
from kfx.numerics.regularization import SCALES, Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import loo, nll, rho
from kfx.optimizers.gradient import SGD, Adam, GradientDescent, Nesterov
from kfx.optimizers.grid import GridSearch
from kfx.optimizers.loss import Loss
from kfx.optimizers.sklearn_gpr import AMPLITUDES, NOISES, SklearnGPR
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Batch, DynamicSampler, FixedSampler, LinearSampler, sample_size
from tests.records import MemoryRecord


class Rows(MemoryRecord):
    """A record that keeps its rows in memory."""

    def row(self, iteration, evaluation, kernel_evaluations, *, told=None, events=(), diagnostics=None):
        self.append((iteration, evaluation, kernel_evaluations, tuple(events)))


def bumps(n=40):
    x = torch.linspace(-3, 3, n, dtype=torch.float64)[:, None]
    return x, torch.sin(2 * x) + torch.cos(3 * x)


def points(n, classes=1):
    rng = np.random.default_rng(1)
    labels = torch.as_tensor(rng.choice(classes, n, p=np.arange(1, classes + 1) / sum(range(1, classes + 1))))
    return torch.as_tensor(rng.normal(size=(n, 2))), torch.eye(classes, dtype=torch.float64)[labels]


def descent(rule, objective=rho, **changes):
    settings = {"iterations": 60, "space": "log", "final": "last", "final_window": 5, "max_reinitializations": 2}
    loss = partial(Loss, objective, Regularization(1e-6, "centered"))
    return GradientDescent(loss, FixedSampler(30, 0.5), rule, **{**settings, **changes})


def mean_rho(kernel, batches=20):
    """ρ of a kernel over fixed batches."""
    x, y = bumps()
    loss = Loss(rho, Regularization(1e-6, "centered"), kernel, x, y)
    stream, sampler = Streams(99)["batches"], FixedSampler(30, 0.5).start(x, y)
    return np.mean([loss(kernel.flat, sampler.draw(stream), False).rho for _ in range(batches)])


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
    sampler = FixedSampler(10, 0.3).start(*points(50))
    batch = sampler.draw(Streams(3)["batches"])
    assert batch.sample_size == 3
    assert len(set(batch.indices)) == 10
    np.testing.assert_array_equal(batch.indices, sampler.draw(Streams(3)["batches"]).indices)
    assert not np.array_equal(batch.indices, sampler.draw(Streams(4)["batches"]).indices)
    assert FixedSampler(None, 0.5).start(*points(7)).draw(Streams(0)["batches"]).indices.shape == (7,)
    assert [sample_size(2, 0.01), sample_size(2, 0.99), sample_size(600, 0.5)] == [1, 1, 300]


def test_streams_do_not_know_each_other():
    alone, both = Streams(0), Streams(0)
    both["data"].random(1000)
    np.testing.assert_array_equal(alone["batches"].random(5), both["batches"].random(5))
    assert not np.array_equal(Streams(0)["data"].random(5), Streams(0)["batches"].random(5))


def test_a_linear_schedule_goes_from_end_to_end():
    sampler = LinearSampler(40, 0.1, 0.5, iterations=5).start(*points(60))
    rng = np.random.default_rng(0)
    assert [sampler.draw(rng, i).sample_size for i in range(5)] == [4, 8, 12, 16, 20]
    assert LinearSampler(40, 0.3, 0.5, iterations=1).proportion(0) == 0.3


def test_a_dynamic_schedule_follows_the_last_rhos():
    sampler = DynamicSampler(100, window=2, floor=0.1).start(*points(100))
    rng = np.random.default_rng(0)
    assert sampler.draw(rng).sample_size == sampler.draw(rng).half_size == 50
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
    sampler = DynamicSampler(30, window=3, floor=0.05).start(x, y)
    sampler.observe(0.5)
    batch = sampler.draw(np.random.default_rng(0))
    assert (batch.sample_size, batch.half_size) == (8, 15)
    found = loss(np.array([0.7]), batch)
    again = [Batch(batch.indices, size) for size in (8, 15)]
    plain = Loss(rho, Regularization(1e-6, "centered"), RBF(0.7), x, y)
    assert [found.rho, found.rho_half] == pytest.approx([plain(np.array([0.7]), each).rho for each in again], rel=1e-12)
    assert np.isfinite(found.gradient).all()


def test_a_dynamic_run_shows_its_sample(kfx):
    words = ["sampler=dynamic", "sampler.batch_size=40", "sampler.window=3", "optimizer=adam", "optimizer.iterations=8"]
    small = [
        "dataset=digits",
        "dataset.n_train=120",
        "dataset.n_test=60",
        "figures=false",
        "device.precision_check=off",
    ]
    assert kfx("run", *words, *small, "hydra.run.dir=r")[0] == 0
    sizes = load_run("r").trace["diagnostic.sample_size"]
    assert sizes[0] == 20
    assert sizes[1:].max() < 20


# ---- which points, and how many samples of them


def test_stratified_batches_and_samples_hold_the_classes_in_proportion():
    x, y = points(300, classes=3)
    share = y.mean(dim=0).numpy()
    sampler = FixedSampler(60, 0.4, "stratified", samples=3).start(x, y)
    batch = sampler.draw(np.random.default_rng(0))
    assert len(set(batch.indices)) == 60
    for order in (np.arange(60), *batch.orders):
        there = y[batch.indices][order].numpy()
        assert np.abs(there.sum(axis=0) - 60 * share).max() <= 1
        assert np.abs(there[:24].sum(axis=0) - 24 * share).max() <= 1.5
    again = sampler.draw(np.random.default_rng(1))
    assert set(again.indices) != set(batch.indices)


def test_a_neighbourhood_is_a_point_and_those_nearest_to_it():
    x, y = points(80)
    batch = FixedSampler(12, 0.5, "neighbourhood").start(x, y).draw(np.random.default_rng(5))
    centre = int(np.random.default_rng(5).integers(80))
    nearest = np.argsort(np.linalg.norm(x.numpy() - x[centre].numpy(), axis=1))[:12]
    assert set(batch.indices) == set(nearest)
    assert batch.indices[0] != centre, "the sample is a random part of it"


@pytest.mark.parametrize("objective", [rho, loo], ids=["rho", "loo"])
def test_the_mean_over_samples_is_that_of_the_samples(objective):
    x, y = bumps()
    loss = Loss(objective, Regularization(1e-4, "centered"), RBF(0.7), x, y)
    batch = FixedSampler(30, 0.5, samples=4).start(x, y).draw(np.random.default_rng(0))
    assert len(batch.orders) == 3
    found = loss(np.array([0.7]), batch)
    each = [loss(np.array([0.7]), Batch(batch.indices[o], 15)) for o in (np.arange(30), *batch.orders)]
    assert found.objective == pytest.approx(np.mean([e.objective for e in each]), rel=1e-12)
    assert found.rho == pytest.approx(np.mean([e.rho for e in each]), rel=1e-12)
    assert found.gradient[0] == pytest.approx(np.mean([e.gradient[0] for e in each]), rel=1e-9)


# ---- lambda as a parameter


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("objective", [nll, loo], ids=["nll", "loo"])
def test_the_gradient_to_lambda_against_differences(objective, scale):
    x, y = bumps()
    kernel = Regularized(RBF(0.7) + Linear(0.3), Regularization(0.02, scale), trained=True)
    assert kernel.names[-1] == "regularization"
    batch = FixedSampler(30, 0.5).start(x, y).draw(np.random.default_rng(0))
    loss = Loss(objective, Regularization(9.0), kernel, x, y)
    found = loss(kernel.flat, batch)
    for i, value in enumerate(kernel.flat):
        up, down = kernel.flat, kernel.flat
        up[i], down[i] = value * (1 + 1e-5), value * (1 - 1e-5)
        slope = (loss(up, batch, False).objective - loss(down, batch, False).objective) / (2e-5 * value)
        assert found.gradient[i] == pytest.approx(slope, rel=1e-6, abs=1e-7 * np.abs(found.gradient).max())
    np.testing.assert_array_equal(kernel.gram(x.numpy()), kernel.kernel.gram(x.numpy()))


def test_a_trained_lambda_finds_the_noise():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.uniform(-5, 5, (300, 1)))
    gram = RBF(1.0).gram(x).numpy()
    y = torch.as_tensor(np.linalg.cholesky(gram + 0.04 * np.eye(300)) @ rng.normal(size=300))[:, None]
    start = Regularized(RBF(0.5), Regularization(1.0, "absolute"), trained=True)
    optimizer = GradientDescent(
        partial(Loss, nll, Regularization()),
        FixedSampler(None),
        Adam(0.1, 0.9, 0.999, 1e-8),
        iterations=80,
        space="log",
        final="last",
        final_window=5,
        max_reinitializations=0,
    )
    fitted = optimizer.fit(start, (x, y), Streams(0), Rows())
    assert fitted.parameters["regularization"] == pytest.approx(0.04, rel=0.3)
    assert fitted.parameters["sigma"] == pytest.approx(1.0, rel=0.2)


def test_lambda_by_validation_is_the_best_of_scikit_learns_folds():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    y = np.sin(x[:, :1]) + 0.3 * rng.normal(size=(60, 1))
    values = [1e-4, 1e-2, 0.3, 10.0]
    candidates = [Regularization(v, "absolute") for v in values]
    chosen = choose_regularization(
        RBF(1.0), torch.as_tensor(x), torch.as_tensor(y), candidates, 4, None, np.random.default_rng(3)
    )
    order = np.random.default_rng(3).permutation(60)
    errors = []
    for value in values:
        ridge = KernelRidge(alpha=value, kernel="rbf", gamma=0.5)
        scores = cross_val_score(ridge, x[order], y[order], cv=KFold(4), scoring="neg_mean_squared_error")
        errors.append(-scores.mean())
    assert chosen.value == values[int(np.argmin(errors))]
    assert 1e-4 < chosen.value < 10


# ---- starts, grid search, scikit-learn


def test_of_several_starts_the_best_goes_on():
    x, y = bumps()
    loss = partial(Loss, rho, Regularization(1e-6, "centered"))
    kernels = [RBF(20.0), RBF(0.7), RBF(0.01)]
    means = mean_objectives(kernels, loss, FixedSampler(30), (x, y), np.random.default_rng(0))
    assert int(np.argmin(means)) == 1
    sampler, rng = FixedSampler(30).start(x, y), np.random.default_rng(0)
    batches = [sampler.draw(rng) for _ in range(10)]
    expected = np.mean([loss(RBF(0.7), x, y)(np.array([0.7]), batch, False).rho for batch in batches])
    assert means[1] == pytest.approx(expected, rel=1e-12)


def test_starts_are_on_record(kfx):
    words = ["kernel.starts=3", "kernel.initial=mean_squared_distance", "optimizer.iterations=2", "dataset=diabetes"]
    assert kfx("run", *words, "figures=false", "device.precision_check=off", "hydra.run.dir=r")[0] == 0
    table = pd.read_csv("r/starts.csv")
    assert list(table["chosen"]) == [int(v == table["objective"].min()) for v in table["objective"]]
    chosen = table.loc[table["chosen"] == 1, "parameter.sigma"].item()
    assert load_run("r").metrics["parameters"]["initial"]["sigma"] == pytest.approx(chosen)


def test_grid_search_goes_over_the_grid_on_each_batch():
    x, y = bumps()
    grid = GridSearch(
        partial(Loss, rho, Regularization(1e-6, "centered")),
        FixedSampler(30),
        iterations=25,
        parameter="sigma",
        bounds=(0.1, 10.0),
        points=10,
        space="log",
        gradient=True,
    )
    rows = Rows()
    best = grid.fit(RBF(1.0), (x, y), Streams(0), rows)
    sigmas = np.array([row[1].vector[0] for row in rows]).reshape(-1, 5)
    np.testing.assert_allclose(sigmas[:2].ravel(), np.geomspace(0.1, 10, 10))
    values = np.array([row[1].objective for row in rows])
    means = [values[i::10].mean() for i in range(10)]
    assert best.parameters["sigma"] == pytest.approx(np.geomspace(0.1, 10, 10)[int(np.argmin(means))])
    assert len(set(values[:20])) == 20, "two batches"


def test_scikit_learns_regressor_comes_back_as_a_kernel():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(60, 2)))
    y = torch.sin(x[:, :1]) * 30 + torch.as_tensor(3 * rng.normal(size=(60, 1)))
    scale = float(y.square().mean().sqrt())
    theirs = {
        "rbf": (RBF(1.0), sk.RBF(1.0, (1e-4, 1e4))),
        "matern": (Matern(1.0, 2.5), sk.Matern(1.0, (1e-4, 1e4), nu=2.5)),
        "rq": (RationalQuadratic(1.0, 1.5), sk.RationalQuadratic(1.5 / 2**0.5, 1.0, (1e-4, 1e4), (1e-3, 1e2))),
        "network": (
            Sum([Scaled(RBF(1.0)), Scaled(RBF(3.0))]),
            sk.RBF(1.0, (1e-4, 1e4)) + sk.ConstantKernel(1.0, AMPLITUDES) * sk.RBF(3.0, (1e-4, 1e4)),
        ),
    }
    for ours, rival in theirs.values():
        optimizer = SklearnGPR(partial(Loss, rho, Regularization()), FixedSampler(None), 100)
        rows = Rows()
        fitted = optimizer.fit(ours, (x, y), Streams(0), rows)
        if isinstance(rival, sk.Sum):
            whole = sk.ConstantKernel(1.0, AMPLITUDES) * rival.k1 + rival.k2
        else:
            whole = sk.ConstantKernel(1.0, AMPLITUDES) * rival
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            process = GaussianProcessRegressor(whole + sk.WhiteKernel(1e-2, NOISES)).fit(x.numpy(), y[:, 0] / scale)
        there = rng.normal(size=(7, 2))
        gram = fitted.gram(x) + fitted.own_regularization.value * torch.eye(60, dtype=torch.float64)
        prediction = fitted.gram(there, x.numpy()) @ torch.linalg.solve(gram, y).numpy()
        np.testing.assert_allclose(prediction[:, 0], process.predict(there) * scale, rtol=2e-2, atol=0.2)
        assert rows[-1][1].regularization > 0


def test_lengths_are_found_again_in_a_draw():
    """σ = 1 from 150 points of a Gaussian process at distances of about 0.13: the likelihood within 15 %, ρ within a
    factor of 2: on one draw ρ need not have its minimum at the length that made the data."""
    rng = np.random.default_rng(2)
    x = torch.as_tensor(rng.uniform(-10, 10, (150, 1)))
    y = torch.as_tensor(np.linalg.cholesky(RBF(1.0).gram(x).numpy() + 1e-8 * np.eye(150)) @ rng.normal(size=(150, 1)))
    found = {}
    for objective in (nll, rho):
        optimizer = GradientDescent(
            partial(Loss, objective, Regularization(1e-6, "absolute")),
            FixedSampler(100),
            Adam(0.05, 0.9, 0.999, 1e-8),
            iterations=120,
            space="log",
            final="last",
            final_window=5,
            max_reinitializations=2,
        )
        found[objective] = optimizer.fit(RBF(0.6), (x, y), Streams(0), Rows()).parameters["sigma"]
    assert found[nll] == pytest.approx(1.0, rel=0.15)
    assert 0.5 < found[rho] < 2.0


def test_a_fit_by_scikit_learn_that_had_ended_is_not_repeated(monkeypatch):
    def fit(rows):
        optimizer = SklearnGPR(partial(Loss, rho, Regularization()), FixedSampler(20), 9)
        return optimizer.fit(RBF(1.0), points(30), Streams(0), rows)

    rows = Rows()
    whole = fit(rows)
    end = max(rows.kept)
    monkeypatch.setattr(GaussianProcessRegressor, "fit", lambda *arguments: pytest.fail("it fits again"))
    again = Rows(restored=rows.kept[end])
    assert fit(again).parameters == whole.parameters
    assert again == []
    amid = Rows(restored=rows.kept[2])
    assert fit(amid).parameters == whole.parameters
    assert [row[1].objective for row in amid] == [row[1].objective for row in rows[2:]]


def test_extreme_exponents_come_back_from_scikit_learn():
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(40, 2)) * 300)
    y = torch.as_tensor(rng.normal(size=(40, 1)))
    optimizer = SklearnGPR(partial(Loss, rho, Regularization()), FixedSampler(None), 5)
    fitted = optimizer.fit(RationalQuadratic(100.0, 1e-3), (x, y), Streams(0), Rows())
    assert np.isfinite(fitted.gram(x).numpy()).all()


def test_uniform_starts_and_re_initialisation_within_their_range(kfx):
    bounds = np.array([[1e-3, 100.0]])
    drawn = {
        distribution: np.array([random_within(bounds, rng, distribution)[0] for _ in range(4000)])
        for distribution, rng in (("uniform", Streams(0)["a"]), ("log_uniform", Streams(0)["a"]))
    }
    assert np.median(drawn["uniform"]) == pytest.approx(50, abs=3)
    assert np.median(drawn["log_uniform"]) == pytest.approx(0.316, rel=0.2)
    from kfx.config.compose import load

    settings = load(["kernel.initial=random", "+kernel.initial_range.sigma=[3,4]", "optimizer=sgd"])
    again = [
        settings.optimizer.build(settings).restarts.draw(RBF(), Streams(i)["optimizer"]).flat[0] for i in range(20)
    ]
    assert 3 <= min(again) < max(again) <= 4


@pytest.mark.parametrize(("n", "nearest", "up"), [(25, 12, 13), (353, 176, 177), (100, 50, 50), (2, 1, 1)])
def test_the_rounding_of_the_sample_size(n, nearest, up):
    assert sample_size(n, 0.5) == nearest
    assert sample_size(n, 0.5, "up") == up


def test_held_out_batches_are_the_same_for_both_kernels(kfx, in_folder):
    words = ["optimizer.iterations=30", "figures=false", "device.precision_check=off"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    assert kfx("run", *words, "optimizer=none", "hydra.run.dir=s")[0] == 0
    table = pd.read_csv("r/held_out.csv")
    assert len(table) == 20
    before, after = (table[table["kernel"] == name]["rho"].to_numpy() for name in ("initial", "trained"))
    found = load_run("r").metrics["held_out"]["rho"]
    assert found["change"]["mean"] == pytest.approx(np.mean(after - before))
    assert found["change"]["sd"] == pytest.approx(np.std(after - before, ddof=1))
    np.testing.assert_array_equal(before, pd.read_csv("s/held_out.csv")["rho"][:10])
    assert load_run("s").metrics["held_out"]["rho"]["change"]["mean"] == 0
    used = set(load_run("r").trace["rho"])
    assert not used & set(before), "no batch of the fit is among them"


def test_the_default_run_shows_what_tuning_does(kfx):
    code, _, _ = kfx("run", "figures=false", "hydra.run.dir=r")
    assert code == 0
    run = load_run("r")
    before, after = (
        next(row["mean"] for row in run.metrics["evaluation"] if (row["kernel"], row["metric"]) == (name, "mse"))
        for name in ("initial", "trained")
    )
    assert after < 0.85 * before
    assert run.metrics["held_out"]["rho"]["change"]["mean"] < -0.1


def test_a_parameter_at_its_bound_is_an_event_and_a_line(kfx, in_folder):
    words = ["dataset=digits", "dataset.n_train=60", "dataset.n_test=20", "sampler.batch_size=20", "kernel.sigma=10"]
    small = ["figures=false", "device.precision_check=off", "optimizer.iterations=130", "kernel.bounds.sigma=[5,20]"]
    code, out, _ = kfx("run", *words, *small, "hydra.run.dir=r")
    assert code == 0
    trace = load_run("r").trace
    first = int(np.flatnonzero(trace["parameter.sigma"] == 5)[0])
    assert np.flatnonzero(trace["event"].astype(str) == "at_bound").tolist() == [first + 99]
    assert "note        sigma stayed at its bound 5 for 100 iterations" in out
    assert ",at_bound," in (in_folder / "r/history.csv").read_text()


def test_the_worst_of_several_kernels_is_where_training_starts(kfx, in_folder):
    words = ["dataset=digits", "dataset.n_train=60", "dataset.n_test=40", "sampler.batch_size=20"]
    small = [
        "figures=true",
        "device.precision_check=off",
        "optimizer.iterations=3",
        "evaluation.n_interpolation=[20,50]",
    ]
    starts = [
        "kernel.initial=random",
        "+kernel.initial_range.sigma=[0.05,20]",
        "kernel.starts=5",
        "kernel.start_from=worst",
    ]
    assert kfx("run", *words, *small, *starts, "hydra.run.dir=r")[0] == 0
    table = pd.read_csv("r/starts.csv")
    assert table.loc[table["chosen"] == 1, "error"].iloc[0] == table["error"].max()
    run = load_run("r")
    assert run.metrics["parameters"]["initial"]["sigma"] == table.loc[table["chosen"] == 1, "parameter.sigma"].iloc[0]
    last = run.evaluation.query("metric == 'accuracy' and n_interpolation == 50").set_index("kernel")["value"]
    random = last[[f"random-{i}" for i in range(5)]]
    np.testing.assert_allclose(1 - random.to_numpy(), table["error"])
    assert last["initial"] == random.min()
