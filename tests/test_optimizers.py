"""Optimizers on functions whose minima are known, and what they do when the arithmetic fails."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from kfx import load_run
from kfx.kernels import ARD, RBF
from kfx.kernels.space import Space, random_within
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import nll, rho
from kfx.optimizers.gradient import SGD, Adam, GradientDescent, Nesterov
from kfx.optimizers.grid import GridSearch
from kfx.optimizers.lbfgs import LBFGS
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question
from kfx.optimizers.loss import Evaluation, Loss
from kfx.optimizers.schedules import Exponential, Milestones, Plateau
from kfx.outcomes import Event, NumericalError
from kfx.sampling.samplers import Sampler
from tests.fits import Rows, bumps, points
from tests.words import SMALL


def descent(rule, objective=rho, **changes):
    settings = {"iterations": 60, "space": "log", "final": "last", "final_window": 5, "max_reinitializations": 2}
    loss = partial(Loss, objective, Regularization(1e-6, "centered"))
    return GradientDescent(loss, Sampler(30, 0.5), rule, **{**settings, **changes})


def mean_rho(kernel, batches=20):
    """ρ of a kernel over fixed batches."""
    x, y = bumps()
    loss = Loss(rho, Regularization(1e-6, "centered"), kernel, x, y)
    stream, sampler = Streams(99)["batches"], Sampler(30, 0.5).start(x, y)
    return np.mean([loss(kernel.flat, sampler.draw(stream), False).rho for _ in range(batches)])


@pytest.mark.parametrize(
    "rule", [SGD(0.1), Nesterov(0.02, 0.9), Adam(0.1, 0.9, 0.999, 1e-8)], ids=lambda r: type(r).__name__
)
@pytest.mark.parametrize("space", ["log", "raw"])
def test_every_rule_lowers_rho(rule, space):
    start = RBF(0.25)
    fitted = descent(rule, space=space).fit(start, bumps(), Streams(0), Rows())
    assert mean_rho(fitted) < 0.65 * mean_rho(start)


@pytest.mark.parametrize("start", [[0.1, 0.3], [1.0, 1.0]], ids=["short lengths", "equal lengths"])
@pytest.mark.parametrize("bounds", [(1e-4, 1e4), (0.6, 1e4)], ids=["free", "at a bound"])
def test_lbfgs_ends_where_scipys_does(start, bounds):
    x, _ = points(60)
    y = torch.sin(3 * x[:, :1]) + 0.1 * x[:, 1:] ** 2
    kernel = ARD(RBF(1.0), np.array(start), bounds={"lengths": bounds})
    objective = partial(Loss, nll, Regularization(1e-4, "centered"))
    rows = Rows()
    settings = {"iterations": 200, "space": "log", "memory": 10, "tolerance": 1e-12}
    fitted = LBFGS(objective, Sampler(60, 0.5), **settings).fit(kernel, (x, y), Streams(0), rows)
    loss, space = objective(kernel, x, y), Space("log", kernel.bounds)
    batch = Sampler(60, 0.5).start(x, y).draw(Streams(0)["batches"])

    def value_and_slope(at):
        found = loss(space.to_parameters(at), batch)
        return found.objective, space.gradient(found.vector, found.gradient)

    ends = list(zip(space.low, space.high, strict=True))
    theirs = minimize(value_and_slope, space.to_coordinates(kernel.flat), jac=True, bounds=ends, method="L-BFGS-B")
    own = loss(fitted.flat, batch)
    assert own.objective == pytest.approx(theirs.fun, rel=1e-6, abs=1e-6)
    assert len(rows) <= 2 * theirs.nfev
    assert len({tuple(row[1].vector) for row in rows}) == len(rows)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_lbfgs_shortens_a_step_that_fails(scale):
    """Of a function that cannot be evaluated beyond 3, from -10 with a minimum at 2.9, in any unit."""
    fit = LBFGS(None, Sampler(2, 0.5), iterations=50, space="raw", memory=5, tolerance=1e-14)
    kernel = RBF(1.0)
    fit.start(FitSetup(kernel, None, None, None, None, None, None))
    fit.position = np.array([-10.0])
    fit.space = Space("raw", np.array([[-100.0, 100.0]]))
    for i in range(50):
        if fit.ask(i, None) is None:
            break
        at = fit.candidate
        events = (Event.DIVERGED,) if at[0] > 3 else ()
        value, slope = scale * np.array((at - 2.9) ** 4)[0], scale * 4 * (at - 2.9) ** 3
        fit.tell(Evaluation(at, float(value), 0.0, None if events else slope, 0.0, 0.0, events, "x" * len(events)))
    assert fit.position[0] == pytest.approx(2.9, abs=0.05)


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


def test_grid_search_goes_over_the_grid_on_each_batch():
    x, y = bumps()
    grid = GridSearch(
        partial(Loss, rho, Regularization(1e-6, "centered")),
        Sampler(30),
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


@pytest.mark.parametrize("lucky", range(5))
def test_a_point_of_a_grid_that_fails_is_not_judged_by_the_batches_on_which_it_works(lucky):
    failure = NumericalError(Event.NOT_POSITIVE_DEFINITE, "scripted")
    values = [(0.1 if batch == lucky else failure, 0.5, 0.6)[point] for batch in range(5) for point in range(3)]
    settings = {"parameter": "sigma", "bounds": (0.1, 10.0), "points": 3, "space": "log", "gradient": False}
    loss = partial(Loss, scripted(values), Regularization(1e-6, "centered"))
    best = GridSearch(loss, Sampler(30), iterations=15, **settings).fit(RBF(1.0), bumps(), Streams(0), Rows())
    assert best.parameters["sigma"] == pytest.approx(1.0)


def test_failures_on_a_batch_that_not_all_points_of_a_grid_see_do_not_count():
    failure = NumericalError(Event.NOT_POSITIVE_DEFINITE, "scripted")
    settings = {"parameter": "sigma", "bounds": (0.1, 10.0), "points": 3, "space": "log", "gradient": False}
    loss = partial(Loss, scripted([0.1, 0.5, 0.9, failure, failure]), Regularization(1e-6, "centered"))
    best = GridSearch(loss, Sampler(30), iterations=5, **settings).fit(RBF(1.0), bumps(), Streams(0), Rows())
    assert best.parameters["sigma"] == pytest.approx(0.1)


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
            Sampler(100),
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


class Drawn(Optimizer):
    """Draws its start when it starts, and ends early."""

    def start(self, setup):
        self.kernel, self.rng, self.at = setup.kernel, setup.rng, setup.rng.uniform(1, 2)

    def ask(self, iteration, batch):
        return None if iteration == 4 else Question(np.array([self.at]), gradient=False)

    def tell(self, evaluation):
        self.at = self.rng.uniform(1, 2)
        return Answer()

    def result(self):
        return self.kernel.with_flat([self.at])

    def state(self):
        return {"at": self.at}

    def restore(self, state):
        self.at = state["at"]


@pytest.mark.parametrize("iteration", [2, 4])
def test_a_resumed_fit_has_the_streams_of_one_that_goes_on(iteration):
    def fit(rows):
        streams = Streams(0)
        loss = partial(Loss, rho, Regularization())
        fitted = Drawn(loss, Sampler(20), 9).fit(RBF(1.0), bumps(), streams, rows)
        return fitted.flat, [row[1].vector for row in rows], streams.state()

    whole = Rows()
    expected = fit(whole)
    again = fit(Rows(restored=whole.kept[iteration]))
    assert again[0] == expected[0]
    assert again[1] == expected[1][iteration:]
    assert again[2] == expected[2]


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


# ---- schedules


def test_the_rate_falls_at_milestones():
    schedule = Milestones([0.4, 0.8], 0.1)
    schedule.start(10, 3)
    assert [schedule.factor(i) for i in range(10)] == pytest.approx([1] * 4 + [0.1] * 4 + [0.01] * 2)


def test_the_rate_falls_exponentially():
    schedule = Exponential(2000, 0.1 / 3.1)
    schedule.start(10_000, 120)
    t = np.array([0, 1, 2000, 9999])
    expected = 1e-4 + 0.003 * np.exp(-t / 2000)  # Görner's rate
    np.testing.assert_allclose([3.1e-3 * schedule.factor(int(i)) for i in t], expected)
    by_epoch = Exponential(None, 0.5)
    by_epoch.start(10, 4)
    assert by_epoch.factor(4) == pytest.approx(0.5 + 0.5 / np.e)


NOISY = np.concatenate([np.linspace(3, 1, 6), 1 + 0.1 * np.random.default_rng(0).random(30)])


@pytest.mark.parametrize("period", [2, None])
@pytest.mark.parametrize(("means", "ends_below"), [(NOISY, 0.01), (1 - 4e-5 * np.arange(60), 1.01)])
def test_the_rate_falls_on_a_plateau_as_torch_has_it(period, means, ends_below):
    """The second objective falls by less than the threshold in each period, and by more in a few."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=3, factor=0.1, eps=0)
    ours = Plateau(period, 3, 0.1)
    ours.start(100, 2)
    for i, mean in enumerate(means):
        for each in (mean - 0.05, mean + 0.05):
            assert ours.factor(i) == pytest.approx(optimizer.param_groups[0]["lr"])
            ours.hear(each)
        theirs.step(mean)
        resumed = Plateau(period, 3, 0.1)
        resumed.start(100, 2)
        resumed.restore(ours.state())
        ours = resumed
    assert ours.factor(0) < ends_below


def test_the_rate_in_use_is_in_the_trace(kfx):
    words = [*SMALL, "kernel=rbf", "optimizer=sgd", "optimizer.learning_rate=0.5", "optimizer.schedule=milestones"]
    assert kfx("run", *words, "optimizer.milestones=[0.5]", "hydra.run.dir=r")[0] == 0
    trace = load_run("r").trace
    np.testing.assert_allclose(trace["diagnostic.learning_rate"], [0.5] * 3 + [0.05] * 3)
    assert kfx("run", *[w for w in words if "schedule" not in w], "hydra.run.dir=s")[0] == 0
    assert "diagnostic.learning_rate" not in load_run("s").trace
