"""The Green's function of −(b u')': its Gram matrix, its pullback, its data, and what is learned of b."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from kfx import load_run
from kfx.data.synthetic import elliptic_1d
from kfx.kernels import GreensFunction
from kfx.numerics import elliptic
from kfx.objectives import interpolation_error, rho

NODES = elliptic.nodes(256)[:, None]


def some(n, seed=0):
    return NODES[np.random.default_rng(seed).permutation(255)[:n]]


def rough(seed=1, scale=0.2):
    kernel = GreensFunction()
    return kernel.with_flat(np.random.default_rng(seed).normal(0, scale, 128))


def test_with_b_one_it_is_exact_at_the_nodes():
    low, high = np.minimum(NODES, NODES.T), np.maximum(NODES, NODES.T)
    np.testing.assert_allclose(GreensFunction().gram(NODES), low * (1 - high), rtol=0, atol=1e-14)


def test_any_b_agrees_with_the_resistances_in_series():
    """With one number an element: G(x_i, x_j) = R_i (R − R_j) / R, R_i = Σ h / b up to the node i ≤ j."""
    kernel = rough()
    until = np.cumsum(1 / (256 * kernel.conductivity))
    r, total = until[:-1], until[-1]
    expected = np.minimum(r[:, None], r) * (total - np.maximum(r[:, None], r)) / total
    np.testing.assert_allclose(kernel.gram(NODES), expected, rtol=1e-9)
    np.testing.assert_allclose(kernel.gram(NODES[:9], NODES[3:]), expected[:9, 3:], rtol=1e-9)
    np.testing.assert_array_equal(np.diagonal(kernel.gram(NODES)), kernel.diagonal(NODES))


@pytest.mark.parametrize("objective", [rho, interpolation_error])
def test_the_pullback_agrees_with_central_differences_for_all_128(objective):
    kernel, x = rough(), some(40)
    y = np.random.default_rng(2).normal(size=(40, 2))

    def value(vector):
        return objective(kernel.with_flat(vector).gram(x), y, 20, 1e-6)[0]

    gram, pull = kernel.pullback(x)
    found = pull(objective(gram, y, 20, 1e-6)[1])
    steps = 1e-4 * np.eye(128)
    flat = kernel.flat

    def central(step):  # of order four
        near, far = (value(flat + k * step) - value(flat - k * step) for k in (1, 2))
        return (8 * near - far) / (12 * 1e-4)

    expected = np.array([central(step) for step in steps])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kind_and_dtype_follow_the_points(dtype):
    x = torch.as_tensor(some(30), dtype=dtype)
    gram, pull = rough().pullback(x)
    assert gram.dtype == rough().gram(x[:4], x).dtype == dtype
    assert pull(torch.eye(30, dtype=dtype)).shape == (128,)


def test_points_that_are_no_nodes_are_refused():
    for x in (np.array([[0.3001]]), np.array([[0.0]]), np.array([[1.0]]), np.ones((3, 2)) / 2):
        with pytest.raises(ValueError, match="nodes i/256"):
            GreensFunction().gram(x)
    with pytest.raises(ValueError, match="inputs"):
        rough().pullback(some(5))[1](np.eye(5), inputs=True)


def test_coefficients_may_be_negative_and_are_drawn_with_variance_one():
    rng = np.random.default_rng(0)
    drawn = [GreensFunction().drawn(rng) for _ in range(20)]
    spread = np.std([np.log(kernel.conductivity) for kernel in drawn])
    assert 0.8 < spread < 1.2
    assert drawn[0].flat.min() < 0
    ranged = GreensFunction().drawn(rng, {"cosine": (0.1, 0.2)})
    assert 0.1 <= ranged.parameters["cosine"].min() <= ranged.parameters["cosine"].max() <= 0.2


def test_the_data_solve_the_equation():
    """The finite-element solution at nodes against the integral of the Green's function on a mesh 16 times finer."""
    data = elliptic_1d(128, None, 256, "random", "one", np.random.default_rng(0))
    x = data.x_test[:, 0]
    expected = x * (1 - x) / 2 + np.sin(2 * np.pi * x) / (2 * np.pi) ** 2  # −u'' = 1 + sin 2πx
    np.testing.assert_allclose(data.y_test[:, 0], expected, atol=2e-6)
    assert set(map(tuple, data.x_train)) <= set(map(tuple, data.x_test))


def test_dyadic_nodes_come_from_coarse_to_fine():
    x = elliptic_1d(255, None, 256, "dyadic", "rough", np.random.default_rng(0)).x_train[:, 0]
    for k in range(1, 9):
        np.testing.assert_array_equal(np.sort(x[: 2**k - 1]), np.arange(1, 2**k) / 2**k)


@pytest.mark.parametrize("conductivity", ["rough", "one"])
def test_rho_falls_by_levels_as_the_paper_says(kfx, conductivity):
    """Owhadi & Yoo 2019, Fig. 5.4: with the true conductivity ρ ≤ C 2^{−2k}, and smaller than with b = 1."""
    words = [f"kernel.conductivity={conductivity}", "figures=false", "hydra.run.dir=r"]
    assert kfx("run", "+experiment=owhadi_yoo/greens_levels", *words)[0] == 0
    table = load_run("r").evaluation
    found = {
        metric: table[(table["kernel"] == "trained") & (table["metric"] == metric)]["value"].to_numpy()[:-1]
        for metric in ("rho", "energy_error", "mse")
    }
    slope = np.polyfit(range(1, 8), np.log2(found["rho"]), 1)[0]
    if conductivity == "rough":
        np.testing.assert_allclose(found["rho"], found["energy_error"], rtol=1e-9)  # the RKHS norm is the energy norm
        assert slope == pytest.approx(-2, abs=0.15)
    else:
        assert slope > -1


@pytest.mark.slow
def test_recovery_lowers_rho_and_the_error(kfx):
    words = ["optimizer.iterations=120", "evaluation.repeats=10", "follow.every=40", "hydra.run.dir=r"]
    code, out, _ = kfx("run", "+experiment=owhadi_yoo/greens_recovery", *words, "figures=true")
    assert code == 0, out
    run = load_run("r")
    held = run.metrics["held_out"]["rho"]
    assert held["trained"]["mean"] < held["initial"]["mean"] / 3
    steps = run.trace.filter(like="parameter.").diff().iloc[1:]
    assert steps.shape[1] == 128
    np.testing.assert_allclose(np.linalg.norm(steps, axis=1), 0.01, rtol=1e-6)  # step_rule=normalized
    followed = pd.read_csv("r/follow.csv")
    assert set(followed["metric"]) == {"mse", "energy_error", "rho", "interpolation_error"}
    assert set(followed["iteration"]) == {0, 40, 80, 120}
    for name in ("conductivity.png", "errors.png"):
        assert (run.directory / "figures" / name).is_file()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset.n_test=300"], "dataset.n_test"),
        (["dataset.n_train=256"], "at most 255"),
        (["dataset.intervals=200", "kernel.intervals=200", "dataset.points=dyadic"], "no power of two"),
        (["dataset.intervals=512"], "kernel.intervals=256"),
        (["dataset.preprocess=[center]"], "moves the nodes"),
        (["optimizer=bayesian"], "may be negative"),
        (["evaluation.rho=true", "evaluation.n_interpolation=[64]"], "two or more"),
        (["evaluation.order=file"], "repeats are the same; set repeats=1"),
        (["optimizer=flow_euler"], "no gradient"),
        (["kernel.bounds.cosine=[2,1]"], "kernel.bounds"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(kfx, words, said):
    code, _, err = kfx("run", "+experiment=owhadi_yoo/greens_recovery", *words, "hydra.run.dir=r")
    assert (code != 0, said in err, "Traceback" in err) == (True, True, False), err


def test_a_grid_over_a_coefficient_goes_through_zero(kfx):
    words = ["dataset=elliptic_1d", "kernel=greens_function", "optimizer=grid", "optimizer.parameter=cosine.0"]
    words += ["optimizer.bounds=[-1,1]", "optimizer.points=5", "optimizer.iterations=5", "hydra.run.dir=r"]
    code, _, err = kfx("run", *words, "regularization.value=1e-8", "sampler.batch_size=40", "follow.every=2")
    assert code == 0, err
    np.testing.assert_allclose(load_run("r").trace["parameter.cosine.0"], [-1, -0.5, 0, 0.5, 1], atol=1e-12)


@pytest.mark.slow
def test_more_coefficients_than_columns_have_pictures_too(kfx):
    words = ["kernel.modes=200", "optimizer.iterations=3", "evaluation.repeats=2", "hydra.run.dir=r"]
    code, _, err = kfx("run", "+experiment=owhadi_yoo/greens_recovery", *words)
    assert (code, "incomplete" in err) == (0, False), err
    assert load_run("r").trace.filter(like="parameter.").columns.tolist() == [
        *("parameter.cosine.norm", "parameter.sine.norm"),
    ]
    assert load_run("r").kernel.parameters["cosine"].shape == (200,)
