"""Kernels and objectives within torch's autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from kfx.kernels import (
    CNNGP,
    RBF,
    Conv2d,
    GreensFunction,
    Linear,
    Matern,
    NetworkFeatures,
    RationalQuadratic,
    ReLU,
    Sequential,
)
from kfx.numerics.regularization import Regularization
from kfx.objectives import gcv, interpolation_error, loo, nll, rho
from kfx.outcomes import NumericalError
from kfx.torch import KernelModule, gram, objective_loss, rho_loss

KERNELS = {
    "rbf": (lambda: RBF(1.3), (6, 2)),
    "matern": (lambda: Matern(0.8, nu=2.5), (6, 2)),
    "sum": (lambda: RBF(1.0) + 0.5 * RationalQuadratic(), (5, 3)),
    "cnngp": (lambda: CNNGP(Sequential(Conv2d(2), ReLU(), Conv2d(2))), (4, 1, 3, 3)),
    "per layer": (
        lambda: CNNGP(Sequential(Conv2d(2), ReLU(), Conv2d(2)), [1.0, 2.0], [0.1, 0.2]),
        (4, 2, 3, 3),
    ),
    "network": (lambda: NetworkFeatures(nn.Sequential(nn.Linear(2, 3), nn.Tanh()).double(), 0.7), (5, 2)),
}


def points(shape, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).standard_normal(shape))


@pytest.mark.parametrize("name", KERNELS)
def test_gradients_of_gram_matrices(name):
    make, shape = KERNELS[name]
    kernel, x, y = make(), points(shape).requires_grad_(), points(shape, 1)[:2].requires_grad_()
    flat = torch.as_tensor(kernel.flat).clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p, x: gram(kernel, x, parameters=p), (flat, x), atol=1e-6)
    assert torch.autograd.gradcheck(lambda p, x, y: gram(kernel, x, y, parameters=p), (flat, x, y), atol=1e-6)
    assert torch.equal(gram(kernel, x.detach()), kernel.gram(x.detach()))
    assert torch.allclose(gram(kernel, x, y).detach(), kernel.gram(x.detach(), y.detach()), atol=1e-12)


@pytest.mark.parametrize("scale", ["absolute", "mean_diagonal", "centered"])
@pytest.mark.parametrize("objective", [rho, nll, loo, gcv, interpolation_error])
def test_gradients_of_objectives(objective, scale):
    a = points((8, 8))
    theta = (a @ a.mT + torch.eye(8)).requires_grad_()
    y = points((8, 2), 1)

    def value(matrix):
        return objective_loss(objective, matrix, y, 4, Regularization(0.1, scale))

    assert torch.autograd.gradcheck(value, (theta,), atol=1e-6)
    assert value(theta).item() == objective(theta.detach(), y, 4, Regularization(0.1, scale))[0]


def test_any_loss_trains_a_kernel_and_any_features_train_by_rho():
    x = points((40, 2))
    y = torch.sin(2 * x[:, :1])
    module = KernelModule(RBF(0.1))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        matrix = module(x)
        held = torch.linalg.solve(matrix[:20, :20] + 1e-3 * torch.eye(20), y[:20])
        loss = (matrix[20:, :20] @ held - y[20:]).square().mean()  # a loss that kfx does not know
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert module.kernel.parameters["sigma"] > 0.3
    assert "RBF(sigma=" in repr(module)

    torch.manual_seed(0)
    features = nn.Sequential(nn.Linear(2, 10), nn.Tanh(), nn.Linear(10, 3)).double()
    optimizer = torch.optim.Adam(features.parameters(), lr=0.02)
    values = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = rho_loss(torch.exp(-torch.cdist(features(x), features(x)).square()), y, 20)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.5 * values[0]


def test_a_module_moves_logarithms_of_what_cannot_be_negative():
    logged, raw = KernelModule(RBF(2.0)), KernelModule(RBF(2.0), space="raw")
    assert torch.allclose(logged.coordinates, torch.tensor([2.0], dtype=torch.float64).log())
    assert raw.coordinates.item() == 2.0
    x = points((5, 2))
    for module in (logged, raw):
        module(x).sum().backward()
    assert np.isclose(logged.coordinates.grad.item(), 2.0 * raw.coordinates.grad.item())
    signed = KernelModule(GreensFunction(16, 3))
    assert not signed.is_logged.all()
    state = KernelModule(RBF(1.0))
    state.load_state_dict(logged.state_dict())
    assert state.kernel.parameters["sigma"] == pytest.approx(2.0)


def test_whole_numbers_do_not_cut_the_other_points():
    x, y = torch.tensor([[0], [1]]), torch.tensor([[0.5]])
    module = KernelModule(RBF(1.0))
    expected = torch.as_tensor(RBF(1.0).gram(np.array([[0.0], [1.0]]), np.array([[0.5]])))
    assert torch.allclose(module(x, y).double(), expected.double())
    with torch.no_grad():
        assert torch.allclose(module(x, y).double(), expected.double())


def test_float32_stays_float32_and_nothing_is_computed_that_nobody_wants():
    x = points((5, 2)).float().requires_grad_()
    matrix = gram(RBF(1.0), x)
    assert matrix.dtype == torch.float32
    matrix.sum().backward()
    assert x.grad.dtype == torch.float32
    assert not gram(RBF(1.0), x.detach()).requires_grad


@pytest.mark.parametrize(
    ("call", "error", "expected"),
    [
        (lambda: gram(RBF(1.0), points((3, 2)), parameters=torch.ones(2)), ValueError, r"expected \(1,\): sigma"),
        (lambda: gram(KernelModule(RBF(1.0)), points((3, 2)), parameters=torch.ones(1)), ValueError, "brings its own"),
        (lambda: KernelModule(RBF(1.0), space="cube"), ValueError, "expected log or raw"),
        (lambda: KernelModule(Linear(0.0)), ValueError, "bias_variance=0: has no logarithm to train"),
        (lambda: rho_loss(points((3, 4)), points((3,)), 1), ValueError, "expected a square matrix"),
        (lambda: rho_loss("Θ", points((3,)), 1), ValueError, "expected a square matrix"),
        (lambda: rho_loss(torch.eye(3), torch.ones(3, requires_grad=True), 1), ValueError, "y requires gradients"),
        (lambda: rho_loss(torch.eye(3), torch.ones(3), 3), ValueError, "sample"),
        (lambda: rho_loss(torch.eye(3), torch.ones(3), 1.5), ValueError, "sample_size=1.5: expected a whole number"),
        (lambda: rho_loss(-torch.eye(3).double(), torch.ones(3), 1, 0.0), NumericalError, "not_positive_definite"),
    ],
)
def test_what_cannot_be_is_refused(call, error, expected):
    with pytest.raises(error, match=expected):
        call()


def test_a_gradient_of_a_gradient_is_refused_not_lost():
    x = points((6, 2)).requires_grad_()
    (slope,) = torch.autograd.grad(rho_loss(gram(RBF(1.0), x), points((6,), 1), 3), x, retain_graph=True)
    assert slope.shape == x.shape
    with pytest.raises(RuntimeError, match="first derivatives alone"):
        torch.autograd.grad(rho_loss(gram(RBF(1.0), x), points((6,), 1), 3), x, create_graph=True)
