"""The dictionary of kernels: formulas, which are positive definite, weights that become zero."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import cdist
from sklearn.metrics import pairwise

import kfx
from kfx.kernels import Dictionary
from kfx.kernels.combination_options import DICTIONARY, INDEFINITE
from kfx.kernels.dictionary import MEMBERS

X = np.random.default_rng(0).normal(size=(60, 4))
R = cdist(X, X)
S = X @ X.T
FORMULAS = {
    "gaussian": pairwise.rbf_kernel(X, gamma=1 / (2 * 0.7**2)),
    "exponential": np.exp(-R / 1.4),
    "inverse_multiquadric": 1 / np.sqrt(1 + R**2 / 0.7),
    "inverse_multiquadric_of_r": 1 / np.sqrt(1 + R / 0.7),
    "inverse_power": 1 / (1 + R**2 / 0.7) ** 3,
    "inverse_power_of_r": 1 / (1 + R / 0.7) ** 3,
    "cauchy": 0.7 / (0.7 + R**2),
    "cauchy_of_r": 0.7 / (0.7 + R),
    "rational": 0.7 / (0.7 + R**2),
    "linear": S + 0.7,
    "polynomial": pairwise.polynomial_kernel(X, degree=3, gamma=0.7, coef0=0.7),
    "multiquadric": np.hypot(R / np.sqrt(0.7), 1),
    "periodic": np.exp(-(np.sin(0.7 * R**2) ** 2) / 0.7),
    "periodic_of_r": np.exp(-(np.sin(0.7 * R) ** 2) / 0.7),
    "decaying_periodic": np.exp(-(np.sin(0.7 * R**2) ** 2) / 0.7 - R**2 / 0.7),
    "decaying_periodic_of_r": np.exp(-(np.sin(0.7 * R) ** 2) / 0.7 - R / 0.7),
    "parabola": np.clip(1 - R**2 / 0.7, 0, None),
    "triangle": np.clip(1 - R / 0.7, 0, None),
    "circular": np.where(R < 0.7, np.pi - np.arccos(np.minimum(R / 0.7, 1)), 0)
    - np.where(R < 0.7, R / 0.7 * np.sqrt(np.clip(1 - (R / 0.7) ** 2, 0, 1)), 0),
    "logarithm": np.log1p(R**3),
    "sigmoid": np.tanh(0.7 * S + 0.7),
}


def alone(name):
    values = {f"{name}_{key}": 3.0 if key == "exponent" else 0.7 for key in MEMBERS[name].parameters}
    return Dictionary([name], allow_indefinite=True, parameters=values)


@pytest.mark.parametrize("name", MEMBERS)
def test_each_member_is_its_formula(name):
    np.testing.assert_allclose(alone(name).gram(X), FORMULAS[name], rtol=1e-9, atol=1e-9)


def test_members_are_those_that_options_name_and_definite_ones_are():
    assert list(MEMBERS) == [*DICTIONARY, *INDEFINITE]
    for name in DICTIONARY:
        values = np.linalg.eigvalsh(alone(name).gram(X))
        assert values[0] > -1e-10 * values[-1], name


def test_a_dictionary_is_the_weighted_mean_of_its_members():
    kernel = Dictionary(["gaussian", "linear", "sigmoid"], allow_indefinite=True, weights=[1.0, 0.0, 3.0])
    gaussian, sigmoid = (Dictionary([name], allow_indefinite=True).gram(X) for name in ("gaussian", "sigmoid"))
    np.testing.assert_allclose(kernel.gram(X), gaussian / 4 + 3 * sigmoid / 4, rtol=1e-12)
    assert kernel.names[:3] == ["weight.gaussian", "weight.linear", "weight.sigmoid"]


@pytest.mark.parametrize("name", INDEFINITE)
def test_derivatives_of_indefinite_members(name):
    kernel, points = alone(name), X[:9]
    cotangent = S[:9, :9]
    gradient, to_points = kernel.pullback(points)[1](cotangent, inputs=True)

    def at(values, moved):
        return float((cotangent * kernel.with_flat(values).gram(moved)).sum())

    flat = kernel.flat
    for i, step in enumerate(1e-6 * np.eye(len(flat))):
        assert gradient[i] == pytest.approx(
            (at(flat + step, points) - at(flat - step, points)) / 2e-6, rel=1e-5, abs=1e-6
        )
    for place in [(0, 0), (4, 2), (8, 3)]:
        step = np.zeros_like(points)
        step[place] = 1e-6
        difference = (at(flat, points + step) - at(flat, points - step)) / 2e-6
        assert to_points[place] == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_the_proximal_step_makes_weights_zero_and_keeps_their_sum():
    kernel = Dictionary(["gaussian", "linear", "cauchy"], weights=[0.2, 0.3, 0.5])
    np.testing.assert_allclose(kernel.proximal(kernel.parameters, 0.25)["weight"], [0, 1 / 6, 5 / 6])
    assert kernel.proximal(kernel.parameters, 100.0)["weight"].sum() == 1, "the largest weight stays"


@pytest.mark.slow
def test_a_sparse_run_says_what_is_left(tmp_path):
    words = ["dataset.n_train=80", "sampler.batch_size=40", "optimizer.iterations=60", "device.threads=1"]
    words += ["kernel=dictionary", "optimizer.sparsity=0.1", f"hydra.run.dir={tmp_path / 'run'}", "figures=false"]
    run = kfx.run(words)
    weights = run.trace.filter(like="parameter.weight.").iloc[-1]
    assert weights.sum() == pytest.approx(1)
    assert 1 <= (weights > 0).sum() < len(DICTIONARY)
    assert isinstance(weights, pd.Series)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernel=dictionary", "kernel.members=[gaussian,sigmoid]"], "not positive definite in every dimension"),
        (["kernel=dictionary", "kernel.members=[gaussian,gauss]"], "kernel.members"),
        (["kernel=dictionary", "kernel.weights=[1.0]"], "expected 11 numbers >= 0"),
        (["kernel=dictionary", "+kernel.parameters.gaussian_scale=1"], "kernel.parameters.gaussian_scale: unknown"),
        (
            ["kernel=dictionary", "kernel.members=[polynomial]", "+kernel.parameters={polynomial_exponent: 2.5}"],
            "whole",
        ),
        (["optimizer.sparsity=0.1"], "kernel=rbf has none"),
        (["kernel=dictionary", "kernel.trainable=[polynomial_exponent]"], "exponents are whole and not trained"),
        (["kernel=dictionary", "kernel.trainable=[gaussian_length]", "optimizer.sparsity=1"], "has no weight"),
    ],
)
def test_a_wrong_dictionary_is_one_line(kfx, words, said):
    code, _, err = kfx("run", *words)
    assert code == 2
    assert said in err
    assert len(err.strip().splitlines()) == 1
