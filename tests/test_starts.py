"""Where parameters and λ start, and how kernels are compared on the same batches."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import KFold, cross_val_score

from kfx import load_run
from kfx.evaluation.cross_validation import errors_of_candidates, least
from kfx.evaluation.held_out import mean_objectives
from kfx.kernels import RBF, Linear, Regularized
from kfx.kernels.space import random_within
from kfx.numerics.regularization import SCALES, Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import gcv, loo, nll, rho, rho_prediction
from kfx.optimizers.gradient import Adam, GradientDescent
from kfx.optimizers.loss import Loss
from kfx.outcomes import ConfigError
from kfx.sampling.samplers import Sampler
from tests.fits import Rows, bumps


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    "objective", [nll, loo, gcv, *(each.with_settings(form="held_out") for each in (nll, rho_prediction))]
)
def test_the_gradient_to_lambda_against_differences(objective, scale):
    x, y = bumps()
    kernel = Regularized(RBF(0.7) + Linear(0.3), Regularization(0.02, scale), trained=True)
    assert kernel.names[-1] == "regularization"
    batch = Sampler(30, 0.5).start(x, y).draw(np.random.default_rng(0))
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
        Sampler(None),
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
    found = errors_of_candidates(
        RBF(1.0), torch.as_tensor(x), torch.as_tensor(y), candidates, 4, None, np.random.default_rng(3)
    )
    chosen = least(candidates, found)
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
    means = mean_objectives(kernels, loss, Sampler(30), (x, y), np.random.default_rng(0))
    assert int(np.argmin(means)) == 1
    sampler, rng = Sampler(30).start(x, y), np.random.default_rng(0)
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


def test_uniform_starts_and_re_initialisation_within_their_range(kfx):
    bounds = np.array([[1e-3, 100.0]])
    drawn = {
        distribution: np.array([random_within(bounds, rng, distribution)[0] for _ in range(4000)])
        for distribution, rng in (("uniform", Streams(0)["a"]), ("log_uniform", Streams(0)["a"]))
    }
    assert np.median(drawn["uniform"]) == pytest.approx(50, abs=3)
    assert np.median(drawn["log_uniform"]) == pytest.approx(0.316, rel=0.2)
    from kfx.experiment.compose import load

    settings = load(["kernel.initial=random", "+kernel.initial_range.sigma=[3,4]", "optimizer=sgd"])
    again = [
        settings.optimizer.build(settings).restarts.draw(RBF(), Streams(i)["optimizer"]).flat[0] for i in range(20)
    ]
    assert 3 <= min(again) < max(again) <= 4


def test_partly_random_draws_what_initial_range_names_and_keeps_the_rest():
    from kfx.experiment.compose import load
    from kfx.kernels.starts import random_kernel

    parts = "kernel.parts=[{name: rbf, sigma: 1.0, coefficient: 0.5}, {name: rbf, sigma: 5.0, coefficient: 0.5}]"
    words = ["kernel=rbf_network", parts, "kernel.initial=partly_random", "kernel.initial_distribution=uniform"]
    with pytest.raises(ConfigError, match="partly_random: needs kernel"):
        load(words)
    config = load([*words, "++kernel.initial_range={0.coefficient:[0,1],1.coefficient:[0,1]}"])
    built = config.kernel.build(None)
    given = dict(zip(built.names, built.flat, strict=True))
    for seed in range(3):
        drawn = random_kernel(built, Streams(seed)["kernel"], config.kernel)
        moved = {name for name, value in zip(drawn.names, drawn.flat, strict=True) if value != given[name]}
        assert moved == {"0.coefficient", "1.coefficient"} < set(given)
        assert all(0 <= value <= 1 for name, value in zip(drawn.names, drawn.flat, strict=True) if name in moved)


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


@pytest.mark.slow
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
