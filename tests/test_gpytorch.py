"""Kernels and objectives within GPyTorch."""

from __future__ import annotations

from itertools import combinations

import gpytorch
import numpy as np
import pytest
import torch

from kfx import objectives
from kfx.config.plugins import load_plugins
from kfx.gpytorch import KfxKernel, Objective
from kfx.kernels import RBF
from kfx.objectives import leave_one_out, loo, nll
from kfx.torch import rho_loss
from tests.plugins import BLOCKS
from tests.test_torch import KERNELS, points


class Model(gpytorch.models.ExactGP):
    def __init__(self, x, y, kernel, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def model_of(kernel, x, y, noise, **options):
    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = noise
    return Model(x, y, KfxKernel(kernel, **options), likelihood).double(), likelihood


IMAGES = {"image_shape": (1, 3, 3)}


@pytest.mark.parametrize("name", ["rbf", "cnngp"])
def test_the_marginal_likelihood_is_nll(name):
    kernel = KERNELS[name][0]()
    x, options = (points((12, 9)), IMAGES) if name == "cnngp" else (points((12, 2)), {})
    y = points((12,), 1)
    model, likelihood = model_of(kernel, x, y, 0.3, **options)
    marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    with gpytorch.settings.fast_computations(False, False, False):
        found = -marginal(model(x), y) * 12
    shaped = x.reshape(12, 1, 3, 3) if options else x
    noise = likelihood.noise.item()  # GPyTorch keeps it in another form
    assert noise == pytest.approx(0.3)
    assert abs(found.item() - nll(kernel.gram(shaped), y, 1, noise)[0]) < 1e-10
    found.backward()
    theta, pull = kernel.pullback(shaped)
    slope = pull(nll(theta, y, 1, noise)[1]) * kernel.flat
    assert np.allclose(model.covar_module.module.coordinates.grad.numpy(), slope, rtol=1e-9)


def test_predictions_are_those_of_kernel_ridge_regression():
    kernel, x, y = RBF(1.3), points((30, 2)), points((30,), 1)
    model, likelihood = model_of(kernel, x, y, 0.1)
    model.eval()
    likelihood.eval()
    new = points((7, 2), 2)
    with torch.no_grad(), gpytorch.settings.fast_computations(False, False, False):
        found = model(new)
        mean, variance = found.mean, found.variance
    a = kernel.gram(x) + likelihood.noise.item() * torch.eye(30)
    cross = kernel.gram(new, x)
    assert torch.allclose(mean, cross @ torch.linalg.solve(a, y), rtol=1e-6)
    assert torch.allclose(variance, 1 - (cross * torch.linalg.solve(a, cross.mT).mT).sum(dim=1), atol=1e-6)


def test_a_gpytorch_model_trains_by_rho():
    """Its own kernel, and a kernel of kfx in a sum with it: the lazy matrix is evaluated."""
    x = points((40, 2))
    y = torch.sin(3 * x[:, 0])
    kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel()) + KfxKernel(RBF(0.3))
    kernel = kernel.double()
    kernel.kernels[0].base_kernel.lengthscale = 0.3
    optimizer = torch.optim.Adam(kernel.parameters(), lr=0.1)
    values = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = rho_loss(kernel(x), y, 20)
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    assert values[-1] < 0.8 * values[0]
    assert kernel.kernels[1].kernel.parameters["sigma"] != pytest.approx(0.3, rel=0.1)


def test_batches_of_processes_and_other_shapes_are_refused():
    with pytest.raises(ValueError, match="without a batch dimension"):
        KfxKernel(RBF(1.0))(points((2, 3, 2))).to_dense()
    with pytest.raises(ValueError, match="points have 4 features"):
        KfxKernel(RBF(1.0), image_shape=(1, 3, 3))(points((3, 4))).to_dense()


# ---- objectives in the place of GPyTorch's marginal log likelihoods

NAMES = [name for name in objectives.__all__ if isinstance(getattr(objectives, name), objectives.Objective)]
SETTINGS = [
    ("nll", {"form": "held_out"}),
    ("nll", {"scale": "profiled"}),
    ("loo", {"form": "held_out"}),
    ("loo", {"folds": 3}),
    ("rho_prediction", {"form": "held_out"}),
    *((name, {}) for name in NAMES),
]
mlls = gpytorch.mlls


class Tasks(gpytorch.models.ExactGP):
    """Two tasks with a Kronecker product, or independent ones, whose covariance has task after task."""

    def __init__(self, x, y, likelihood, independent):
        super().__init__(x, y, likelihood)
        self.independent = independent
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=2)
        self.kernels = torch.nn.ModuleList([gpytorch.kernels.RBFKernel(), gpytorch.kernels.MaternKernel()])
        self.covar_module = gpytorch.kernels.MultitaskKernel(self.kernels[0], num_tasks=2, rank=1)

    def forward(self, x):
        if self.independent:
            mean = self.mean_module(x).mT
            each = [gpytorch.distributions.MultivariateNormal(m, k(x)) for m, k in zip(mean, self.kernels, strict=True)]
            return gpytorch.distributions.MultitaskMultivariateNormal.from_independent_mvns(each)
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


def process(kind="single", n=8, noises=None):
    """A likelihood and a model with a mean that is not zero, its points, and its targets."""
    torch.manual_seed(3)
    x, y = points((n, 2)), points((n,) if kind == "single" else (n, 2), 1)
    if kind == "single":
        kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        if noises is not None:
            likelihood = gpytorch.likelihoods.FixedNoiseGaussianLikelihood(noises, learn_additional_noise=True)
        model = Model(x, y, kernel, likelihood).double()
        model.mean_module = gpytorch.means.ConstantMean().double()
    else:
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(2, has_task_noise=kind == "task noise")
        model = Tasks(x, y, likelihood, kind == "independent").double()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    for name, parameter in model.mean_module.named_parameters():
        torch.nn.init.constant_(parameter, 0.7 if name.endswith("raw_constant") else 0.0)
    model.mean_module.requires_grad_(False)
    return likelihood, model, x, y


def slopes(model, value):
    model.zero_grad()
    value.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def dense(likelihood, model, x):
    """The mean and the covariance with noise of all entries, point after point, in plain matrices."""
    with torch.no_grad():
        found = likelihood(model(x))
        matrix = found.covariance_matrix.detach()
        if not getattr(found, "_interleaved", True):
            n = len(x)
            matrix = matrix.reshape(2, n, 2, n).permute(1, 0, 3, 2).reshape(2 * n, 2 * n)
        return found.mean.reshape(-1), matrix


@pytest.mark.parametrize(
    ("name", "kind", "theirs"),
    [
        ("nll", "single", mlls.ExactMarginalLogLikelihood),
        ("nll", "kronecker", mlls.ExactMarginalLogLikelihood),
        ("nll", "task noise", mlls.ExactMarginalLogLikelihood),
        ("loo_likelihood", "single", mlls.LeaveOneOutPseudoLikelihood),  # it takes no tasks
    ],
)
def test_what_gpytorch_has_is_the_same(name, kind, theirs):
    likelihood, model, x, y = process(kind)
    part = model.covar_module.base_kernel if kind == "single" else model.kernels[0]
    part.register_prior("own", gpytorch.priors.GammaPrior(2.0, 3.0), "lengthscale")
    with gpytorch.settings.fast_computations(False, False, False):
        expected = theirs(likelihood, model)(model(x), y)
        gradients = slopes(model, expected)
    found = Objective(likelihood, model, name)(model(x), y)
    assert found.item() == pytest.approx(expected.item(), rel=1e-10)
    own = slopes(model, found)
    assert own.keys() == gradients.keys()
    assert all(torch.allclose(own[key], gradients[key], rtol=1e-6, atol=1e-10) for key in own)


def test_independent_tasks_have_the_sum_of_their_likelihoods():
    """GPyTorch 1.15's own value takes the targets in another order than this covariance, which has task after task."""
    likelihood, model, x, y = process("independent")
    with torch.no_grad():
        mean, noise = model.mean_module(x), likelihood.noise * torch.eye(8).to(x)
        each = [
            torch.distributions.MultivariateNormal(mean[:, i], kernel(x).to_dense() + noise).log_prob(y[:, i])
            for i, kernel in enumerate(model.kernels)
        ]
    assert Objective(likelihood, model, "nll")(model(x), y).item() == pytest.approx(sum(each).item() / 16)


@pytest.mark.parametrize("kind", ["single", "kronecker", "independent", "task noise"])
def test_points_left_out_are_refits(kind):
    """One entry at a time: the other tasks of its point stay. The CRPS is integrated from its definition."""
    likelihood, model, x, y = process(kind, n=5)
    mean, a = dense(likelihood, model, x)
    flat = y.reshape(-1)
    errors, scores, densities = [], [], []
    for i in range(len(flat)):
        rest = torch.arange(len(flat)) != i
        weights = torch.linalg.solve(a[rest][:, rest], a[rest, i])
        left = torch.distributions.Normal(
            mean[i] + weights @ (flat - mean)[rest], (a[i, i] - weights @ a[rest, i]).sqrt()
        )
        errors.append((left.mean - flat[i]) ** 2)
        densities.append(left.log_prob(flat[i]))
        grid = torch.linspace(-30, 30, 600001, dtype=torch.float64)
        scores.append(torch.trapezoid((left.cdf(grid) - (grid >= flat[i]).double()) ** 2, grid))
    for name, expected in (("loo", errors), ("crps", scores), ("loo_likelihood", [-each for each in densities])):
        found = -Objective(likelihood, model, name)(model(x), y).item()
        assert found == pytest.approx(torch.stack(expected).mean().item(), rel=1e-4 if name == "crps" else 1e-9)


@pytest.mark.filterwarnings("ignore:the noise gets no gradient:UserWarning")
@pytest.mark.parametrize("kind", ["single", "kronecker"])
@pytest.mark.parametrize(("name", "settings"), SETTINGS)
def test_gradients_are_differences(name, settings, kind):
    likelihood, model, x, y = process(kind)

    def value():
        return Objective(likelihood, model, name, **settings)(model(x), y)  # the same sample each time

    found, step = slopes(model, value()), 1e-5
    trains_noise = "raw_noise" in " ".join(found)
    assert trains_noise == (name in ("nll", "loo", "loo_likelihood", "crps", "gcv") or settings == {"form": "held_out"})
    assert len(found) >= 2
    for key, parameter in model.named_parameters():
        for i in range(parameter.numel() if key in found else 0):
            values = []
            for sign in (1, -1):
                with torch.no_grad():
                    parameter.view(-1)[i] += sign * step
                    values.append(value().item())
                    parameter.view(-1)[i] -= sign * step
            expected = (values[0] - values[1]) / (2 * step)
            assert found[key].view(-1)[i].item() == pytest.approx(expected, rel=1e-5, abs=1e-8), key


@pytest.mark.filterwarnings("ignore:the noise gets no gradient:UserWarning")
@pytest.mark.parametrize("kind", ["single", "kronecker", "independent"])
@pytest.mark.parametrize("name", ["rho", "interpolation_error"])
def test_the_sample_is_a_random_half_of_the_points(name, kind):
    likelihood, model, x, y = process(kind, n=4)
    mean, a = dense(likelihood, model, x)
    noise, tasks = likelihood.noise.item(), y[0].numel()
    theta, possible = a - noise * torch.eye(len(a)).to(a), []
    for half in combinations(range(4), 2):
        order = [tasks * i + j for i in (*half, *(set(range(4)) - set(half))) for j in range(tasks)]
        left = (y.reshape(-1) - mean)[order]
        possible.append(getattr(objectives, name)(theta[order][:, order], left, 2 * tasks, noise)[0])
    scale = 4 * tasks if name == "interpolation_error" else 1
    mll = Objective(likelihood, model, name)
    drawn = [-scale * mll(model(x), y).item() for _ in range(40)]
    nearest = [int(np.abs(np.subtract(possible, each)).argmin()) for each in drawn]
    assert np.allclose([possible[i] for i in nearest], drawn, rtol=1e-9)
    assert set(nearest) == set(range(6))
    again = Objective(likelihood, model, name)
    assert drawn[:3] == [-scale * again(model(x), y).item() for _ in range(3)]


def test_noise_of_several_variances():
    noises = torch.linspace(0.1, 0.8, 8, dtype=torch.float64)
    likelihood, model, x, y = process(noises=noises)
    mean, a = dense(likelihood, model, x)
    assert a.diagonal().std() > 0.1
    found = Objective(likelihood, model, "loo")(model(x), y)
    assert -found.item() == pytest.approx(loo(a, y - mean, 1, 0.0)[0])
    assert any("noise" in key for key in slopes(model, found))
    with pytest.raises(ValueError, match="objective=rho: λ is the likelihood's noise, expected one variance"):
        Objective(likelihood, model, "rho")(model(x), y)


def test_a_constant_kernel_is_a_mean_that_is_left_out_with_each_point():
    """Its variance → ∞: the mean of the others by generalized least squares predicts each point."""
    x, y = points((8, 2)), points((8,), 1) + 50
    likelihood, rbf = gpytorch.likelihoods.GaussianLikelihood().double(), gpytorch.kernels.RBFKernel().double()
    constant = gpytorch.kernels.ConstantKernel().double()
    constant.constant = torch.tensor(1e7, dtype=torch.float64)
    model = Model(x, y, rbf + constant, likelihood).double()
    a = (rbf(x).to_dense() + likelihood.noise * torch.eye(8).to(x)).detach()
    errors = []
    for i in range(8):
        rest = torch.arange(8) != i
        weights = torch.linalg.solve(a[rest][:, rest], torch.stack([torch.ones(7).to(x), y[rest]], dim=1))
        mean = weights[:, 1].sum() / weights[:, 0].sum()
        errors.append(mean + a[i, rest] @ (weights[:, 1] - mean * weights[:, 0]) - y[i])
    found = -Objective(likelihood, model, "loo")(model(x), y).item()
    assert found == pytest.approx(torch.stack(errors).square().mean().item(), rel=1e-4)


def test_what_gets_no_gradient_is_said():
    likelihood, model, x, y = process()
    with pytest.warns(UserWarning, match="the noise gets no gradient from objective=rho"):
        Objective(likelihood, model, "rho")(model(x), y)
    model.mean_module.requires_grad_(True)
    with pytest.warns(UserWarning, match="the mean gets no gradient"):
        Objective(likelihood, model, "loo")(model(x), y)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"objective": "elbo"}, "objective='elbo': expected one of rho, .*loo"),
        ({"objective": "loo", "fold": 3}, "fold: objective=loo takes form, folds"),
        ({"objective": "gcv", "form": "batch"}, "form: objective=gcv takes no settings"),
        ({"objective": "loo", "form": "half"}, "form=half: expected one of batch, held_out"),
        ({"objective": "rho", "sample_proportion": 1.0}, "sample_proportion=1.0: expected a number > 0 and < 1"),
    ],
)
def test_settings_that_an_objective_has_not_are_refused(words, expected):
    likelihood, model, _, _ = process()
    with pytest.raises(ValueError, match=expected):
        Objective(likelihood, model, **words)


def test_other_outputs_and_targets_are_refused():
    likelihood, model, x, y = process()
    mll = Objective(likelihood, model, "loo")
    batch = gpytorch.distributions.MultivariateNormal(torch.zeros(2, 8), torch.eye(8).expand(2, 8, 8))
    with pytest.raises(ValueError, match=r"a batch of shape \(2,\)"):
        mll(batch, torch.zeros(2, 8))
    with pytest.raises(ValueError, match=r"targets of \(8, 1\)"):
        mll(model(x), y[:, None])
    with pytest.raises(ValueError, match="1 values are not finite"):
        mll(model(x), torch.where(y == y[2], torch.nan, y))
    with pytest.raises(ValueError, match="a MultivariateNormal, got Tensor"):
        mll(y, y)


def test_a_plugins_criterion_is_a_name_like_any_other(in_folder, own_registry):
    text, line = BLOCKS["loo_absolute"], "    def build(self):"
    (in_folder / "loo_absolute.py").write_text(text.replace(line, f"    trains_regularization = True\n\n{line}"))
    load_plugins(["loo_absolute.py"])
    likelihood, model, x, y = process(n=5)
    mean, a = dense(likelihood, model, x)
    expected = leave_one_out.errors(a, y - mean, 0.0).abs().mean()
    found = Objective(likelihood, model, "loo_absolute")(model(x), y)
    assert -found.item() == pytest.approx(expected.item())
    assert any("noise" in key for key in slopes(model, found))


@pytest.mark.parametrize("name", ["loo", "crps"])
def test_an_ordinary_loop_in_float32_trains_by_it(name):
    x = points((40, 2)).float()
    y = torch.sin(3 * x[:, 0])
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Model(x, y, gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=2)), likelihood)
    mll = Objective(likelihood, model, name)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        loss = -mll(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert loss.dtype == torch.float32
    assert losses[-1] < 0.5 * losses[0]
    assert likelihood.noise.item() < 0.3
    one, other = model.covar_module.base_kernel.lengthscale[0]
    assert other > 2 * one  # only the first feature matters
