"""Finite differences and Bayesian optimisation: against exact gradients, known minima and scripted trouble."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from kfx import load_run
from kfx.kernels import RBF, RationalQuadratic
from kfx.kernels.space import Space
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import nll, rho
from kfx.optimizers.bayesian import BayesianOptimization
from kfx.optimizers.finite_difference import DifferencedLoss
from kfx.optimizers.loop import FitSetup
from kfx.optimizers.loss import Evaluation, Loss
from kfx.outcomes import ConfigError, Event, NumericalError
from kfx.record.columns import untimed
from kfx.sampling.samplers import Sampler
from tests.records import MemoryRecord
from tests.slow import slow_after

SMALL = ["dataset=digits", "dataset.n_train=80", "dataset.n_test=30", "sampler.batch_size=20", "optimizer.iterations=8"]
BARE = [*SMALL, "figures=false", "device.precision_check=off"]


def table(n=40):
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(n, 3)))
    return x, torch.sin(2 * x[:, :1])


# ---- finite differences


@pytest.mark.parametrize(("scheme", "tolerance", "per_parameter"), [("forward", 2e-3, 1), ("central", 1e-6, 2)])
def test_differences_against_the_exact_gradient(scheme, tolerance, per_parameter):
    kernel, regularization = RationalQuadratic(0.7, 1.2), Regularization(1e-2, "centered")
    batch = Sampler(30, 0.5).start(*table()).draw(Streams(0)["batches"])
    exact = Loss(rho, regularization, kernel, *table())(kernel.flat, batch)
    loss = DifferencedLoss(1e-4, scheme, rho, regularization, kernel, *table())
    found = loss(kernel.flat, batch)
    np.testing.assert_allclose(found.gradient, exact.gradient, rtol=tolerance)
    assert found.rho == pytest.approx(exact.rho, rel=1e-12)
    assert loss.kernel_evaluations == 1 + 2 * per_parameter


@pytest.mark.parametrize("scheme", ["forward", "central"])
@pytest.mark.parametrize("high", [0.3, 1.0, 7.0, 20.0, 50.0])
def test_differences_at_an_upper_bound_look_back(scheme, high):
    kernel = RBF(0.25, bounds={"sigma": (0.2, high)})
    at = Space("log", kernel.bounds).to_parameters(np.log(np.array([high])))  # up to round-off
    batch = Sampler(30, 0.5).start(*table()).draw(Streams(0)["batches"])
    exact, differences = (
        loss(rho, Regularization(1e-2, "centered"), kernel, *table())(at, batch).gradient
        for loss in (Loss, partial(DifferencedLoss, 1e-4, scheme))
    )
    np.testing.assert_allclose(differences, exact, rtol=5e-3)


def test_a_step_that_is_lost_in_round_off_is_refused():
    batch = Sampler(30, 0.5).start(*table()).draw(Streams(0)["batches"])
    loss = DifferencedLoss(1e-14, "forward", rho, Regularization(), RBF(1000.0, bounds={"sigma": (1.0, 1e4)}), *table())
    with pytest.raises(ConfigError, match=r"optimizer\.step=1e-14: is lost in round-off beside sigma=1000"):
        loss(loss.kernel.flat, batch)
    fixed = RBF(2.0, bounds={"sigma": (2.0, 2.0)})
    found = DifferencedLoss(1e-4, "central", rho, Regularization(), fixed, *table())(fixed.flat, batch)
    assert found.gradient.tolist() == [0.0]


def test_float32_is_warned_about():
    x, y = table()
    with pytest.warns(UserWarning, match="finite differences in float32"):
        DifferencedLoss(1e-4, "forward", rho, Regularization(), RBF(), x.float(), y)


def test_a_failure_beside_the_point_is_a_failure():
    calls = iter(range(9))

    def objective(gram, y, n_c, regularization, cotangent=True):
        if next(calls) == 1:
            raise NumericalError(Event.NOT_POSITIVE_DEFINITE, "scripted")
        return rho(gram, y, n_c, regularization, cotangent)

    loss = DifferencedLoss(1e-4, "forward", objective, Regularization(), RBF(), *table())
    found = loss(np.array([1.0]), Sampler(30, 0.5).start(*table()).draw(Streams(0)["batches"]))
    assert found.failed
    assert np.isfinite(found.rho), "what was measured stays on record"
    assert found.gradient is None
    assert found.vector[0] == 1.0


# ---- Bayesian optimisation


class Scripted:
    """A loss that answers from a function of the vector and the number of the call."""

    def __init__(self, answer, is_ratio=True):
        self.answer, self.kernel_evaluations, self.objective = answer, 0, rho if is_ratio else nll

    def lap(self):
        return {}

    def __call__(self, vector, batch, gradient=True):
        self.kernel_evaluations += 1
        value = self.answer(vector, self.kernel_evaluations)
        bad = not np.isfinite(value)
        events = (Event.NOT_POSITIVE_DEFINITE,) if bad else ()
        return Evaluation(vector, value, value, None, 1e-4, 0.0, events, "scripted" if bad else "")


class Rows(MemoryRecord):
    def row(self, step):
        self.append({"value": step.evaluation.objective, "told": step.told, "events": step.events, **step.diagnostics})


def search(answer, kernel=None, is_ratio=True, **changes):
    settings = {
        "iterations": 12,
        "initial_points": 4,
        "bounds": (0.25, 200.0),
        "space": "raw",
        "noise": 1e-10,
        "recheck_threshold": 0.1,
    }
    rows = Rows()
    optimizer = BayesianOptimization(
        lambda kernel, x, y: Scripted(answer, is_ratio), Sampler(10, 0.5), **{**settings, **changes}
    )
    fitted = optimizer.fit(kernel or RationalQuadratic(), table(), Streams(0), rows)
    return fitted, rows


@pytest.mark.slow
def test_the_minimum_of_a_known_function_is_found():
    def bowl(vector, call):
        return 0.2 + 0.5 * np.mean(((np.log(vector) - np.log([20.0, 5.0])) / 4) ** 2)

    fitted, rows = search(bowl, iterations=30, initial_points=10, space="log")
    assert bowl(fitted.flat, 0) < 0.2 + 0.5 * 0.005
    assert min(row["told"] for row in rows) == pytest.approx(bowl(fitted.flat, 0))
    assert [row["incumbent"] for row in rows] == list(np.minimum.accumulate([row["told"] for row in rows]))


@pytest.mark.slow
def test_a_negative_rho_is_told_as_1_and_recorded_as_measured():
    fitted, rows = search(lambda vector, call: -3.0 if call == 3 else 0.5 + 1e-3 * vector[0])
    (bad,) = [row for row in rows if row["value"] < 0]
    assert bad["told"] == 1.0
    assert bad["value"] == -3.0
    assert min(row["incumbent"] for row in rows) >= 0.5
    assert fitted.flat[0] < 200


@pytest.mark.slow
def test_a_likelihood_is_told_as_it_is_and_a_failure_as_the_worst_so_far():
    answers = {1: -300.0, 2: 700.0, 3: np.nan}
    _, rows = search(lambda vector, call: answers.get(call, 50.0), is_ratio=False)
    assert [row["told"] for row in rows][:4] == [-300.0, 700.0, 700.0, 50.0]


@pytest.mark.parametrize("failures", [1, 2, 4, 7])  # before all values; more than initial points too
@pytest.mark.parametrize("least", [-500.0, 0.5, 2000.0])
def test_failures_before_all_values_of_a_likelihood_lose_nothing(failures, least):
    def answer(vector, call):
        return np.nan if call <= failures else least + abs(np.log(vector[0]))

    fitted, rows = search(answer, is_ratio=False, iterations=failures + 5, initial_points=4)
    values = np.array([row["value"] for row in rows])
    assert answer(fitted.flat, failures + 1) == np.nanmin(values)
    assert np.isnan([row["told"] for row in rows[:failures]]).all(), "nothing is known that it could be told"
    np.testing.assert_array_equal([row["incumbent"] for row in rows], np.fmin.accumulate(values))


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 6])
def test_a_search_goes_on_from_failures_as_if_it_had_never_stopped(stop):
    def answer(vector, call):
        return np.nan if call <= 2 else 300 + abs(np.log(vector[0]))

    def fit(iterations, state=None):
        box = {"bounds": (1e-2, 200.0), "space": "log", "noise": 1e-10, "recheck_threshold": 0.1}
        loss = Scripted(answer, is_ratio=False)
        loss.kernel_evaluations = 0 if state is None else stop
        optimizer = BayesianOptimization(
            lambda kernel, x, y: loss, Sampler(10, 0.5), iterations=iterations, initial_points=3, **box
        )
        rng = Streams(0)["optimizer"]
        optimizer.start(FitSetup(RationalQuadratic(), *table(), table()[0], loss, rng, Path()))
        if state is not None:
            optimizer.restore(state)
        asked = []
        for _ in range(iterations):
            vector = optimizer.ask(0, None).vector
            asked.append(vector)
            optimizer.tell(loss(vector, None))
        return np.array(asked), optimizer.state()

    whole, _ = fit(8)
    assert len(np.unique(whole, axis=0)) == len(whole), "no point twice"
    first, state = fit(stop)
    rest, _ = fit(8 - stop, state)
    np.testing.assert_array_equal(np.concatenate([first, rest]), whole)


@pytest.mark.slow
def test_a_failed_factorisation_is_told_as_1():
    _, rows = search(lambda vector, call: np.nan if call == 3 else 0.5)
    assert [row["told"] for row in rows if not np.isfinite(row["value"])] == [1.0]


@pytest.mark.slow
def test_a_minimum_that_does_not_hold_is_rejected():
    """The first two calls are a point and its second batch, the third a new minimum, whose ρ rises there by 0.3."""
    values = {1: 0.6, 2: 0.6, 3: 0.2, 4: 0.5}
    _, rows = search(lambda vector, call: values.get(call, 0.6))
    rejected = rows[1]
    assert (rejected["value"], rejected["told"], rejected["recheck"]) == (0.2, 1.0, 0.5)
    assert rejected["events"] == (Event.MINIMUM_REJECTED,)
    assert rows[-1]["incumbent"] == 0.6


def test_a_minimum_that_holds_stays():
    values = {1: 0.6, 2: 0.6, 3: 0.2, 4: 0.25}
    _, rows = search(lambda vector, call: values.get(call, 0.6))
    assert (rows[1]["told"], rows[1]["recheck"]) == (0.2, 0.25)
    assert rows[1]["events"] == ()
    assert rows[-1]["incumbent"] == 0.2


@pytest.mark.parametrize(("recheck", "told"), slow_after(1, [("two_sided", 1.0), ("one_sided", 0.5)]))
def test_a_minimum_that_falls_on_another_batch(recheck, told):
    """|ρ_new − ρ_old| ≤ ε as printed, ρ_new − ρ_old ≤ ε as coded; of the first point as well."""
    values = {1: 0.5, 2: 0.2}
    _, rows = search(lambda vector, call: values.get(call, 0.9), recheck=recheck)
    assert (rows[0]["told"], rows[0]["recheck"]) == (told, 0.2)


def test_a_search_of_which_every_point_is_rejected_says_why():
    with pytest.raises(NumericalError, match=r"ρ changed by 0\.\d+ on another batch"):
        search(lambda vector, call: 0.2 if call % 2 else 0.7)


@pytest.mark.slow
def test_nothing_but_failures_is_an_error():
    with pytest.raises(NumericalError, match="scripted"):
        search(lambda vector, call: np.nan)


@pytest.mark.slow
def test_same_seed_same_search():
    def bowl(vector, call):
        return float(np.mean((vector / 100 - 0.5) ** 2))

    first, second = (search(bowl)[1] for _ in range(2))
    assert [row["value"] for row in first] == [row["value"] for row in second]


@pytest.mark.slow
def test_the_record_of_a_search(kfx, in_folder):
    words = ["kernel=cnngp", "optimizer=bayesian", "optimizer.initial_points=4", "hydra.run.dir=r"]
    code, _, err = kfx("run", *SMALL, *words, "figures=true")
    assert code == 0, err
    trace = load_run("r").trace
    assert {"told", "diagnostic.recheck", "diagnostic.incumbent", "parameter.weight_variance"} <= set(trace.columns)
    assert trace["diagnostic.incumbent"].is_monotonic_decreasing
    assert trace["parameter.weight_variance"].between(0.25, 200).all()
    best = trace.loc[trace["told"].idxmin()]
    assert load_run("r").kernel.parameters["weight_variance"] == best["parameter.weight_variance"]
    assert {"convergence.png", "surrogate.png"} <= {p.name for p in (in_folder / "r/figures").iterdir()}


@pytest.mark.parametrize("optimizer", slow_after(1, ["finite_difference", "bayesian"]))
def test_same_seed_same_trace(kfx, optimizer):
    for folder, seed in (("a", 0), ("b", 0), ("c", 1)):
        kfx("run", *BARE, f"optimizer={optimizer}", f"seed={seed}", f"hydra.run.dir={folder}")
    first, second, other = (untimed(load_run(f).trace) for f in "abc")
    assert first.equals(second)
    assert not first.equals(other)
