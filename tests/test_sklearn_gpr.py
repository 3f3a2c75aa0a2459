"""The plugin for comparisons with scikit-learn's GaussianProcessRegressor."""

from __future__ import annotations

import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from kfx import load_run, plug_in
from kfx.config.registry import OPTIONS
from kfx.kernels import RBF, Matern, RationalQuadratic, Scaled, Sum
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import rho
from kfx.optimizers.loss import Loss
from kfx.sampling.samplers import Sampler
from tests.fits import Rows, points

PLUGIN = Path(__file__).parent.parent / "scripts" / "sklearn_gpr.py"


@pytest.fixture
def rival(own_registry):
    """The plugin's module; its option is there for the test alone."""
    plug_in(PLUGIN)
    return sys.modules[OPTIONS["optimizer"]["sklearn_gpr"].__module__]


SMALL = ["dataset=digits", "dataset.n_train=60", "dataset.n_test=30", "sampler.batch_size=20", "optimizer.iterations=5"]


def test_a_run_takes_the_plugin(own_registry, kfx):
    words = ["--plugin", str(PLUGIN), *SMALL, "optimizer=sklearn_gpr", "kernel=rbf", "kernel.sigma=30"]
    code, _, err = kfx("run", *words, "figures=false", "device.precision_check=off", "hydra.run.dir=r")
    assert code == 0, err
    assert len(load_run("r").trace) > 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernel.trainable=[sigma]"], "kernel.trainable: optimizer=sklearn_gpr fits every parameter; set null"),
        (["kernel=laplace"], "kernel=laplace: scikit-learn has no such kernel"),
        (["regularization.selection=validation"], "regularization.selection=validation: optimizer=sklearn_gpr"),
        (["sampler.augment=[flip]"], "takes images as they are"),
    ],
)
def test_what_it_does_not_take_is_said_in_a_line(own_registry, kfx, words, said):
    code, _, err = kfx("run", "--plugin", str(PLUGIN), *SMALL, "kernel=rbf", "optimizer=sklearn_gpr", *words)
    assert (code, said in err) == (2, True), err


def test_scikit_learns_regressor_comes_back_as_a_kernel(rival):
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
            sk.RBF(1.0, (1e-4, 1e4)) + sk.ConstantKernel(1.0, rival.AMPLITUDES) * sk.RBF(3.0, (1e-4, 1e4)),
        ),
    }
    for ours, other in theirs.values():
        optimizer = rival.SklearnGPR(partial(Loss, rho, Regularization()), Sampler(None), 100)
        rows = Rows()
        fitted = optimizer.fit(ours, (x, y), Streams(0), rows)
        if isinstance(other, sk.Sum):
            whole = sk.ConstantKernel(1.0, rival.AMPLITUDES) * other.k1 + other.k2
        else:
            whole = sk.ConstantKernel(1.0, rival.AMPLITUDES) * other
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            process = GaussianProcessRegressor(whole + sk.WhiteKernel(1e-2, rival.NOISES)).fit(
                x.numpy(), y[:, 0] / scale
            )
        there = rng.normal(size=(7, 2))
        gram = fitted.gram(x) + fitted.own_regularization.value * torch.eye(60, dtype=torch.float64)
        prediction = fitted.gram(there, x.numpy()) @ torch.linalg.solve(gram, y).numpy()
        np.testing.assert_allclose(prediction[:, 0], process.predict(there) * scale, rtol=2e-2, atol=0.2)
        assert rows[-1][1].regularization > 0


def test_a_fit_by_scikit_learn_that_had_ended_is_not_repeated(rival, monkeypatch):
    def fit(rows):
        optimizer = rival.SklearnGPR(partial(Loss, rho, Regularization()), Sampler(20), 9)
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


def test_extreme_exponents_come_back_from_scikit_learn(rival):
    rng = np.random.default_rng(0)
    x = torch.as_tensor(rng.normal(size=(40, 2)) * 300)
    y = torch.as_tensor(rng.normal(size=(40, 1)))
    optimizer = rival.SklearnGPR(partial(Loss, rho, Regularization()), Sampler(None), 5)
    fitted = optimizer.fit(RationalQuadratic(100.0, 1e-3), (x, y), Streams(0), Rows())
    assert np.isfinite(fitted.gram(x).numpy()).all()
