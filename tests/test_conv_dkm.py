"""Deep kernel machines: each layer against features drawn explicitly, the whole against CNNGP and differences, and the
fits that they make."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

from kfx import load_run
from kfx.kernels import CNNGP, Conv2d, Regularized, ReLU, Sequential
from kfx.kernels.conv_dkm import full_rank, fused_arccos
from kfx.kernels.conv_dkm.arccos import Arccos, _Phi
from kfx.kernels.conv_dkm.architectures import Architecture
from kfx.kernels.conv_dkm.convolution import Convolution
from kfx.kernels.conv_dkm.gram import InducingGram, factor
from kfx.kernels.conv_dkm.gram_layer import GramLayer
from kfx.kernels.conv_dkm.kernel import ConvDKM, nystrom
from kfx.kernels.conv_dkm.likelihoods import Categorical, Gaussian
from kfx.kernels.conv_dkm.normalization import Normalization, Normalizing
from kfx.kernels.conv_dkm.patches import Patches
from kfx.kernels.conv_dkm.posterior import MEAN, ROOT, WithPosterior, outputs
from kfx.kernels.conv_dkm.skip import Skip
from kfx.kernels.conv_dkm.top import AveragePooling, Linear
from kfx.numerics import process, threads
from kfx.numerics.regularization import Regularization
from kfx.optimizers.evidence import EvidenceLoss
from kfx.optimizers.gradient import Adam
from kfx.outcomes import ConfigError, Event, NumericalError
from kfx.record.columns import untimed
from kfx.sampling.samplers import Batch, EpochSampler
from tests.slow import slow_after

ARCHITECTURE = Architecture((1, 6, 6), (4, 5), (1, 2), 1, 0.7, 1e-3)
SMALL = ["kernel=conv_dkm", "kernel.architecture=small", "kernel.inducing=[4,5,6]", "objective=elbo"]
SMALL += ["dataset=digits", "dataset.n_train=120", "dataset.n_test=60", "sampler=epochs", "sampler.batch_size=50"]
SMALL += ["objective.samples=10", "device.precision_check=off", "evaluation.n_interpolation=[50]", "figures=false"]


def images(n=12, size=6, channels=1, seed=0):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, channels, size, size)))


def one_hot(n=12, classes=3, seed=1):
    return torch.eye(classes, dtype=torch.float64)[np.random.default_rng(seed).integers(0, classes, n)]


def machine(architecture=ARCHITECTURE, likelihood="categorical", outputs=3, x=None, seed=0):
    torch.manual_seed(seed)
    x, rng = images() if x is None else x, np.random.default_rng(seed)
    return WithPosterior.over(ConvDKM(architecture, likelihood).with_patches(x, rng), x[:1], outputs, rng)


def joint(seed=0, inducing=4, size=3, features=30):
    """The Gram matrix of random features of inducing points and of one image's positions: whole, and in blocks."""
    f = torch.as_tensor(np.random.default_rng(seed).normal(size=(inducing + size * size, features)))
    whole = f @ f.mT / features
    ti = whole[inducing:, :inducing].reshape(1, size, size, inducing)
    return whole, InducingGram(whole[:inducing, :inducing], ti, whole.diagonal()[inducing:].reshape(1, size, size)), f


def drawn(covariance, count, seed=5):
    """(count, len(covariance)): normal vectors with it."""
    normal = torch.as_tensor(np.random.default_rng(seed).normal(size=(count, len(covariance))))
    values, vectors = torch.linalg.eigh(covariance)
    return normal @ (vectors * values.clamp(min=0).sqrt()).mT


def agrees(made, inducing, points):
    """Whether the blocks are the second moments of features (count, ·), within three standard errors, or five where
    there are hundreds of entries."""
    pairs = [
        (made.ii.flatten(), inducing[:, :, None] * inducing[:, None, :]),
        (made.ti.flatten(), points[:, :, None] * inducing[:, None, :]),
        (made.t.flatten(), points.square()),
    ]
    deviations = torch.cat(
        [
            (expected.detach() - products.flatten(1).mean(dim=0))
            / (products.flatten(1).std(dim=0) / math.sqrt(len(products)))
            for expected, products in pairs
        ]
    )
    assert float((deviations.abs() < 3).double().mean()) > 0.97
    assert float(deviations.abs().max()) < 5
    return True


# ---- each layer against features


def test_a_convolution_is_that_of_features_with_random_weights():
    _, g, f = joint()
    layer = Convolution((4, 5), (3, 3), padding=1).double()
    torch.nn.init.normal_(layer.weight)
    made, rng, count = layer(g), np.random.default_rng(3), 40_000
    c = layer.weight.detach() / 2  # √P_in = 2
    w = torch.as_tensor(rng.normal(size=(count, 9, f.shape[1]))) / math.sqrt(f.shape[1])
    padded = nn.functional.pad(f[4:].reshape(3, 3, -1), (0, 0, 1, 1, 1, 1))
    patches = padded.unfold(0, 3, 1).unfold(1, 3, 1).permute(0, 1, 3, 4, 2).reshape(9, 9, -1)
    inside = nn.functional.pad(torch.ones(3, 3), (1, 1, 1, 1)).unfold(0, 3, 1).unfold(1, 3, 1).reshape(9, 9).sum(dim=1)
    of_inducing = torch.einsum("opd,pf,ndf->no", c.flatten(2), f[:4], w) / 3
    of_points = torch.einsum("sdf,ndf->ns", patches, w) / 3
    # padding does not count in the variances, where it does in the pairs: as the paper has it
    made = made.having(made.ii, made.ti, made.t * (inside / 9).reshape(1, 3, 3))
    assert agrees(made, of_inducing, of_points)


def test_a_strided_convolution_of_single_pixels_is_that_of_torch():
    ti = torch.rand(3, 5, 5, 4, dtype=torch.float64)
    layer = Convolution((4, 6), (1, 1), stride=2).double()
    ii, t = torch.eye(4, dtype=torch.float64), torch.ones(3, 5, 5, dtype=torch.float64)
    wanted = nn.functional.conv2d(ti.permute(0, 3, 1, 2), layer.weight / 2, stride=2).permute(0, 2, 3, 1)
    torch.testing.assert_close(layer(InducingGram(ii, ti, t)).ti, wanted)


def test_the_nonlinearity_is_that_of_rectified_features():
    whole, g, _ = joint()
    layer = Arccos(0.0, weight_variance=1.7, bias_variance=0.3).double()
    features = drawn(whole, 100_000).clamp(min=0) * math.sqrt(2 * 1.7)
    bias = math.sqrt(0.3) * torch.as_tensor(np.random.default_rng(9).normal(size=(100_000, 1)))
    assert agrees(layer(g), features[:, :4] + bias, features[:, 4:] + bias)
    jittered = Arccos(1e-2, bias_variance=1e-300).double()(g)
    torch.testing.assert_close(jittered.ii.diagonal(), g.ii.diagonal() * 1.01 + 0.01)
    torch.testing.assert_close(jittered.t, g.t * 1.01 + 0.01)


def test_the_nonlinearity_of_points_that_are_inducing_points_is_their_own():
    g = joint()[1]
    same = g.having(g.ii, g.ii[None, None], g.ii.diagonal()[None, None])
    made = Arccos(0.0).double()(same)
    torch.testing.assert_close(made.ti[0, 0], made.ii, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-5)])
def test_the_compiled_nonlinearity_is_the_formula_in_torch_whatever_the_threads(dtype, tolerance, monkeypatch):
    rng = np.random.default_rng(0)
    f, h = (torch.as_tensor(rng.normal(size=size)) for size in ((6, 3), (9, 300, 300, 3)))  # two tasks of rows
    c, vi, vt = h @ f.mT, f.square().sum(dim=-1) * 1.001, h.square().sum(dim=-1) * 1.001
    slope = torch.as_tensor(rng.normal(size=c.shape), dtype=dtype)
    arguments = [a.to(dtype).requires_grad_() for a in (c, vi, vt, torch.tensor(1.3), torch.tensor(0.2))]

    def found():
        value = _Phi.apply(*arguments)
        return value.detach(), *torch.autograd.grad(value, arguments, slope)

    compiled = found()
    with process.exclusively():
        threads.use(1, engine=3)
        assert all(torch.equal(a, b) for a, b in zip(found(), compiled, strict=True))
    monkeypatch.setattr(fused_arccos, "DTYPES", ())
    for plain, ours in zip(found(), compiled, strict=True):
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance * float(plain.abs().max()))


def test_a_learned_gram_matrix_moves_the_points_with_its_inducing_points():
    whole, k, _ = joint()
    layer = GramLayer(4, 1.0).double()
    layer.root.data = torch.as_tensor(np.random.default_rng(4).normal(size=(4, 4)))
    layer.log_scale.data.fill_(0.3)
    made = layer(k)
    count = 100_000
    inducing = drawn(made.ii.detach(), count)
    explained = whole[4:, :4] @ torch.linalg.inv(whole[:4, :4])
    rest = drawn(whole[4:, 4:] - explained @ whole[:4, 4:], count, seed=6)
    assert agrees(made, inducing, inducing @ explained.mT + rest)


def test_a_gram_layer_starts_as_its_kernel_and_its_penalty_is_a_divergence():
    k = joint()[1]
    layer = GramLayer(4, 0.5).double()
    layer.starting, layer.label = True, "here"
    layer(k)
    layer.starting = False
    made = layer(k)
    for name in ("ii", "ti", "t"):
        torch.testing.assert_close(getattr(made, name), getattr(k, name))
    assert float(made.penalties["here"].detach()) == pytest.approx(0, abs=1e-12)
    layer.root.data += 0.3
    made, normal = layer(k), torch.distributions.MultivariateNormal
    zero = torch.zeros(4, dtype=torch.float64)
    divergence = torch.distributions.kl_divergence(normal(zero, made.ii), normal(zero, k.ii))
    assert float(made.penalties["here"].detach()) == pytest.approx(0.5 * float(divergence.detach()))
    layer.strength = 0.0
    assert float(layer(k).penalties["here"]) == 0


def test_pooling_is_that_of_the_whole_covariance_with_a_corrected_nystrom_approximation():
    whole, k, _ = joint()
    explained = whole[4:, :4] @ torch.linalg.inv(whole[:4, :4]) @ whole[:4, 4:]
    corrected = explained + torch.diag((whole[4:, 4:] - explained).diagonal())
    made = AveragePooling()(k)
    torch.testing.assert_close(made.t, corrected.mean()[None])
    torch.testing.assert_close(made.ti, whole[4:, :4].mean(dim=0)[None])
    # where the inducing points explain all, that is the covariance itself
    few = joint(features=4)
    torch.testing.assert_close(AveragePooling()(few[1]).t, few[0][4:, 4:].mean()[None])


def test_normalization_divides_by_roots_of_mean_variances_and_learned_scales_multiply():
    g = joint()[1]
    g = g.having(g.ii, torch.cat([g.ti, 2 * g.ti]), torch.cat([g.t, 4 * g.t]))
    for how in (
        Normalizing(*each)
        for each in itertools.product(
            ("none", "batch", "local"),
            ("none", "batch", "image", "location", "local"),
            ("none", "batch", "local"),
            ("none", "batch", "location"),
        )
    ):
        layer = Normalization(how, 4, (3, 3)).double()
        for scale in (layer.inducing_scale, layer.point_scale):
            if scale is not None:
                torch.nn.init.normal_(scale)
        made = layer(g)
        i = {"none": torch.ones(4), "batch": g.ii.diagonal().mean().expand(4), "local": g.ii.diagonal()}[how.inducing]
        means = {
            "none": torch.ones_like(g.t),
            "batch": g.t.mean().expand_as(g.t),
            "image": g.t.mean(dim=(1, 2), keepdim=True).expand_as(g.t),
            "location": g.t.mean(dim=0).expand_as(g.t),
            "local": g.t,
        }
        a = i.double().rsqrt() * (1 if layer.inducing_scale is None else layer.inducing_scale.exp())
        b = means[how.points].rsqrt() * (1 if layer.point_scale is None else layer.point_scale.exp())
        torch.testing.assert_close(made.ii, g.ii * a * a[:, None])
        torch.testing.assert_close(made.ti, g.ti * a * b[..., None])
        torch.testing.assert_close(made.t, g.t * b**2)


def test_a_skip_is_halfway():
    g = joint()[1]
    double = nn.Sequential(Double())
    for shortcut, recomputed in ((None, False), (None, True), (Double(), False)):
        made = Skip(double, shortcut, recomputed)(g)
        factor_ = 2.0 if shortcut else 1.5
        torch.testing.assert_close(made.ti, factor_ * g.ti)
        torch.testing.assert_close(made.ii, factor_ * g.ii)


class Double(nn.Module):
    def forward(self, g):
        return g.having(2 * g.ii, 2 * g.ti, 2 * g.t)


def test_outputs_are_those_of_a_posterior_over_inducing_points():
    _, k, _ = joint()
    whole = joint()[0]
    top = k.having(k.ii, k.ti[0, 0, :1], k.t[0, 0, :1])
    rng = np.random.default_rng(2)
    own = {MEAN: torch.as_tensor(rng.normal(size=(4, 2))), ROOT: torch.as_tensor(rng.normal(size=(4, 4)))}
    made, a = outputs(top, own), own[ROOT] @ own[ROOT].mT / 4
    normal = torch.distributions.MultivariateNormal
    prior = normal(torch.zeros(4, dtype=torch.float64), k.ii)
    for i in range(2):
        divergence = torch.distributions.kl_divergence(normal(own[MEAN][:, i], a), prior)
        assert float(made.divergence[i]) == pytest.approx(float(divergence))
    at = own[MEAN][:, 0] + drawn(a, 400_000)
    explained = torch.linalg.solve(k.ii, whole[:4, 4])
    rest = float(whole[4, 4] - explained @ whole[:4, 4])
    f = at @ explained + math.sqrt(rest) * torch.as_tensor(rng.normal(size=400_000))
    assert abs(float(made.mean[0, 0] - f.mean())) < 3 * float(f.std()) / math.sqrt(len(f))
    assert float(made.variance[0]) == pytest.approx(float(f.var()), rel=0.01)


def test_with_all_points_inducing_the_sparse_objective_is_the_full_rank_one():
    # With the exact posterior of the outputs, E log p − KL is log p(Y) (Milsom et al. 2023, eq. 5 and 7).
    f, noise, strength, n = torch.as_tensor(np.random.default_rng(3).normal(size=(6, 9))), 0.3, 0.7, 6
    start, y = f @ f.mT / 9, torch.as_tensor(np.random.default_rng(4).normal(size=(n, 2)))
    passed = InducingGram(start, start[:, None, None], start.diagonal()[:, None, None])
    grams = []
    for i in range(2):
        layer = GramLayer(n, strength).double()
        layer.label = str(i)
        layer.root.data += 0.2 * torch.as_tensor(np.random.default_rng(i).normal(size=(n, n)))
        passed = layer(Arccos(0.0).double()(passed))
        grams.append(passed.ii)
    k = Arccos(0.0).double()(passed)
    solved = torch.linalg.solve(k.ii + noise * torch.eye(n, dtype=torch.float64), torch.cat([y, k.ii], dim=1))
    posterior = k.ii - k.ii @ solved[:, 2:]
    own = {MEAN: k.ii @ solved[:, :2], ROOT: torch.linalg.cholesky(posterior) * math.sqrt(n)}
    made = outputs(k.having(k.ii, k.ti[:, 0, 0], k.t[:, 0, 0]), own)
    expected = Gaussian(noise).expected(made.mean, made.variance, y, 0, torch.Generator())
    sparse = n * expected - made.divergence.sum() - sum(passed.penalties.values())
    whole = full_rank.objective(start, grams, y, noise, strength)
    torch.testing.assert_close(sparse, whole, rtol=1e-6, atol=1e-6)


def test_learned_gram_matrices_raise_the_full_rank_objective_above_that_of_the_nngp():
    x = torch.linspace(-2, 2, 8, dtype=torch.float64)[:, None]
    start, y = x @ x.mT + torch.eye(8, dtype=torch.float64), torch.sign(torch.sin(3 * x))
    roots = [torch.linalg.cholesky(full_rank._arccos(start, 1.0, 0.1)).requires_grad_()]

    def value():
        return full_rank.objective(start, [root @ root.mT for root in roots], y, 0.05, 0.5)

    at_kernel = full_rank.objective(start, [full_rank._arccos(start, 1.0, 0.1)], y, 0.05, 100.0)
    assert value().item() == pytest.approx(at_kernel.item()), "no divergence at the kernel"
    optimizer = torch.optim.Adam(roots, 0.02)
    for _ in range(100):
        optimizer.zero_grad()
        (-value()).backward()
        optimizer.step()
    assert value() > at_kernel + 0.5


def test_the_closed_gaussian_likelihood_is_what_sampling_gives():
    rng = np.random.default_rng(0)
    mean, y = torch.as_tensor(rng.normal(size=(5, 3))), one_hot(5)
    variance = torch.as_tensor(rng.uniform(0.1, 2, 5))
    closed = Gaussian(0.5).expected(mean, variance, y, 1, torch.Generator())
    f = mean + variance.sqrt()[:, None] * torch.as_tensor(rng.normal(size=(100_000, 5, 3)))
    each = torch.distributions.Normal(f, math.sqrt(0.5)).log_prob(y).sum(dim=2).mean(dim=1)
    assert abs(float(closed - each.mean())) < 3 * float(each.std()) / math.sqrt(len(each))


def test_the_categorical_likelihood_and_its_predictions_are_means_over_samples():
    mean, variance, y = torch.tensor([[1.0, 0.0, -1.0]] * 4000), torch.full((4000,), 0.7), torch.eye(3)[[0] * 4000]
    expected = Categorical().expected(mean, variance, y, 50, torch.Generator().manual_seed(1))
    f = mean[0] + math.sqrt(0.7) * torch.randn(400_000, 3, generator=torch.Generator().manual_seed(2))
    assert float(expected) == pytest.approx(float(torch.log_softmax(f, dim=1)[:, 0].mean()), abs=0.005)
    found = Categorical().predicted(mean[:3], variance[:3])
    assert found.log_probabilities is not None
    np.testing.assert_allclose(found.log_probabilities.exp().sum(dim=1), 1, rtol=1e-5)
    np.testing.assert_allclose(found.log_probabilities[0].exp(), torch.softmax(f, dim=1).mean(dim=0), atol=0.01)
    sure = Categorical().predicted(mean[:1], torch.zeros(1))
    torch.testing.assert_close(sure.log_probabilities, torch.log_softmax(mean[:1], dim=1))


# ---- the whole


def selecting(places, arriving, size, seed):
    """A convolution whose weights put at each leaving inducing point the patch at these arriving ones."""
    layer = Convolution((arriving, len(places)), size).double()
    layer.weight.data.zero_()
    for i, patch in enumerate(places):
        for d, place in enumerate(patch):
            layer.weight.data.view(len(places), arriving, -1)[i, place, d] = math.sqrt(arriving)
    return layer


def test_with_all_patches_inducing_and_g_at_k_it_is_the_exact_cnngp():
    n, size = 3, 5
    x = images(n, size, channels=2)
    patches = x.unfold(2, 3, 1).unfold(3, 3, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 2, 3, 3)

    def places(edge, window):
        """Of each window of n maps of edge × edge points, the points in it."""
        at = torch.arange(n * edge * edge).reshape(n, edge, edge)
        return at.unfold(1, window, 1).unfold(2, window, 1).reshape(-1, window * window).tolist()

    g = Patches(patches, False)(x)
    g = g.having(g.ii, g.ti[:, 1:-1, 1:-1], g.t[:, 1:-1, 1:-1])  # positions whose patch needs no padding
    nonlinear = Arccos(0.0).double()
    nonlinear.log_bias_variance.data.fill_(-math.inf)
    g = selecting(places(3, 2), 9 * n, (2, 2), 0)(nonlinear(g))
    strict = GramLayer(4 * n, math.pi).double()
    assert float(torch.linalg.eigvalsh(g.ii.detach())[0]) > 1e-6, "a full-rank problem"
    strict.starting = True
    strict(g)
    strict.starting = False
    top = Linear((4 * n, n), (2, 2)).double()
    top.weight.data = selecting(places(2, 2), 4 * n, (2, 2), 0).weight.data
    made = top(nonlinear(strict(g)))
    after = {"weight_multiplier": 2.0}  # arccos has twice the ReLU's covariance
    exact = CNNGP(
        Sequential(Conv2d(3), ReLU(), Conv2d(2, **after), ReLU(), Conv2d(2, **after)), 1.0, 0.0, engine="torch"
    ).gram(x)
    for block in (made.ii, made.ti, nystrom(made)):
        torch.testing.assert_close(block, exact, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(made.t, exact.diagonal(), rtol=1e-9, atol=0)


SETTINGS = [
    (ARCHITECTURE, "categorical"),
    (replace(ARCHITECTURE, top="linear", normalizing=Normalizing("batch", "batch"), recomputed=False), "gaussian"),
    (replace(ARCHITECTURE, normalizing=Normalizing("batch", "location", "local", "location")), "categorical"),
    (replace(ARCHITECTURE, top="linear", normalizing=Normalizing("local", "image", "none", "none")), "categorical"),
    (replace(ARCHITECTURE, strength=math.inf, normalizing=Normalizing("none", "none")), "categorical"),
]


@pytest.mark.parametrize(
    ("architecture", "likelihood"),
    slow_after(1, SETTINGS),
)
def test_gradients_are_those_of_differences(architecture, likelihood):
    kernel, x, y = machine(architecture, likelihood), images(), one_hot()
    loss = EvidenceLoss(20, False, Regularization(1e-4, "centered"), kernel, x, y)
    rng = np.random.default_rng(7)
    start = kernel.flat + 0.1 * torch.as_tensor(rng.normal(size=len(kernel.flat)))
    batch, along = Batch(np.arange(10), 5), torch.as_tensor(rng.normal(size=len(start)))
    found = loss(start, batch)
    assert not found.failed
    place = 0
    for name in kernel.trainable:
        size = kernel.parameters[name].numel()
        direction = torch.zeros_like(start)
        direction[place : place + size] = along[place : place + size]
        place += size

        def at(step, direction=direction):
            return loss(start + step * direction, batch, gradient=False).objective

        h = 1e-4
        difference = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)
        allowed = 1e-6 * abs(difference) + 1e-9 * float(found.gradient.norm()) + 1e-10
        assert abs(float(found.gradient @ direction) - difference) < allowed, name


def test_the_gram_matrix_pulls_back_to_parameters_and_points():
    kernel = machine(replace(ARCHITECTURE, normalizing=Normalizing("batch", "batch"))).kernel
    x, rng = images(5), np.random.default_rng(3)
    gram, pull = kernel.pullback(x)
    torch.testing.assert_close(gram, kernel.gram(x))
    cotangent = torch.as_tensor(rng.normal(size=(5, 5)))
    cotangent = cotangent + cotangent.mT
    flat, to_points = pull(cotangent, inputs=True)
    d, dx, h = torch.as_tensor(rng.normal(size=len(flat))), torch.as_tensor(rng.normal(size=x.shape)), 1e-5

    def at(step, of_points):
        moved = kernel if of_points else kernel.with_flat(kernel.flat + step * d)
        return float((cotangent * moved.gram(x + step * dx if of_points else x)).sum())

    assert float(flat @ d) == pytest.approx((at(h, False) - at(-h, False)) / (2 * h), rel=1e-5)
    assert float((to_points * dx).sum()) == pytest.approx((at(h, True) - at(-h, True)) / (2 * h), rel=1e-5)


def test_variances_are_positive_and_bound_the_pairs():
    for seed, (architecture, _) in itertools.product(range(3), SETTINGS):
        kernel = machine(architecture, seed=seed)
        moved = kernel.with_flat(kernel.flat + 0.3 * torch.randn(len(kernel.flat), dtype=torch.float64))
        seen = []
        module = moved.kernel.module
        for part in module.modules():
            part.register_forward_hook(lambda _, __, made, seen=seen: seen.append(made))
        with torch.no_grad():
            module(images(seed=seed))
        for g in seen:
            if isinstance(g, InducingGram):
                lower = factor(g.ii)
                explained = (
                    torch.linalg.solve_triangular(lower, g.ti.flatten(0, -2).mT, upper=False).square().sum(dim=0)
                )
                assert bool((g.t > 0).all())
                assert bool((explained <= g.t.flatten() * (1 + 1e-9)).all())


def test_single_precision_is_near_double_precision():
    kernel, x = machine(replace(ARCHITECTURE, inducing=(12, 16))), images(30, seed=4)
    single = kernel.kernel.to(torch.float32, torch.device("cpu"))
    double_gram, single_gram = kernel.gram(x), single.gram(x.float())
    assert single_gram.dtype == torch.float32
    torch.testing.assert_close(single_gram.double(), double_gram, rtol=1e-4, atol=1e-5)
    assert single.top(x.float()).ii.dtype == torch.float64


def test_memory_of_blocks_that_are_recomputed_does_not_grow_with_their_layers():
    def kept(blocks, recomputed):
        sizes = {}

        def keep(tensor):
            sizes[tensor.data_ptr()] = tensor.numel()
            return tensor

        kernel = machine(replace(ARCHITECTURE, blocks=blocks, recomputed=recomputed)).kernel
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            kernel.taped(images(40))
        largest = max(sizes.values())
        return sum(sizes.values()), largest

    (few, largest), (many, _) = kept(1, True), kept(4, True)
    (all_few, _), (all_many, _) = kept(1, False), kept(4, False)
    assert many - few < 0.4 * (all_many - all_few)
    assert largest <= 40 * 36 * 9 * 5, "no matrix of positions with positions"


def test_patches_come_from_the_images():
    x = images(3, channels=1)
    kernel = machine(replace(ARCHITECTURE, inducing=(10, 5)), x=x).kernel
    windows = x.unfold(2, 3, 1).unfold(3, 3, 1).reshape(-1, 9)
    distances = torch.cdist(kernel.parameters["patches.patches"].flatten(1), windows)
    assert float(distances.min(dim=1).values.max()) < 1e-12
    assert len(set(distances.argmin(dim=1).tolist())) == 10
    module = kernel.module(x)
    assert max(float(v.detach().abs()) for v in module.penalties.values()) < 1e-9, "every G at its K"
    with pytest.raises(ValueError, match="49 inducing patches, more than the 48 of the images"):
        machine(replace(ARCHITECTURE, inducing=(49, 5)), x=x)


def test_settled_kernels_treat_each_point_by_itself():
    kernel, x = machine(replace(ARCHITECTURE, normalizing=Normalizing("batch", "location"))).kernel, images(30)
    alone = kernel.gram(x[:10])
    assert float((alone - kernel.gram(x)[:10, :10]).abs().max()) > 1e-6
    fixed = kernel.fixed_on(x)
    torch.testing.assert_close(fixed.gram(x[:10]), fixed.gram(x)[:10, :10])
    torch.testing.assert_close(fixed.gram(x[:10], x[10:]), fixed.gram(x)[:10, 10:])
    torch.testing.assert_close(kernel.gram(x[:10], x), fixed.gram(x[:10], x))
    assert fixed.fixed_on(x[:3]) is fixed
    mapped, compare = fixed.feature_map_and_kernel()
    torch.testing.assert_close(compare.gram(mapped(x)), fixed.gram(x))
    torch.testing.assert_close(compare.gram(mapped(x[:4]), mapped(x)), fixed.gram(x[:4], x))
    rows, cotangent = mapped(x[:6]), torch.ones(6, 6, dtype=torch.float64) + torch.diag(torch.arange(6.0).double())
    _, to_rows = compare.pullback(rows)[1](cotangent, inputs=True)
    along = torch.as_tensor(np.random.default_rng(2).normal(size=rows.shape))
    difference = ((compare.gram(rows + 1e-6 * along) - compare.gram(rows - 1e-6 * along)) * cotangent).sum() / 2e-6
    assert float((to_rows * along).sum()) == pytest.approx(float(difference), rel=1e-6)
    names, grams = zip(*fixed.inner_grams(x), strict=True)
    layers = ("stage1_block1", "stage2_block1", "top")
    assert names == tuple(itertools.chain.from_iterable((name, f"{name}.explained") for name in layers))
    torch.testing.assert_close(grams[-2], fixed.gram(x))
    off = ~torch.eye(len(x), dtype=torch.bool)
    torch.testing.assert_close(grams[-1][off], grams[-2][off])
    assert bool((grams[-1].diagonal() <= grams[-2].diagonal() * (1 + 1e-12)).all())
    local = machine().kernel
    assert local.fixed_on(x) is local


def test_a_fresh_kernel_has_other_weights_and_starts_at_its_kernel():
    kernel = machine()
    other = kernel.drawn(np.random.default_rng(5))
    assert not torch.equal(other.parameters["stem.convolution.weight"], kernel.parameters["stem.convolution.weight"])
    torch.testing.assert_close(other.parameters["patches.patches"], kernel.parameters["patches.patches"])
    module = other.kernel.module(images())
    assert max(float(v.detach().abs()) for v in module.penalties.values()) < 1e-9


def test_a_gram_matrix_that_cannot_be_factored_is_said():
    bad = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    with pytest.raises(NumericalError, match=r"smallest eigenvalue -1; raise kernel\.jitter"):
        factor(bad)
    with pytest.raises(NumericalError, match="not finite"):
        factor(bad * math.nan)
    kernel, x, y = machine(), images(), one_hot()
    loss = EvidenceLoss(5, False, Regularization(1e-4, "centered"), kernel, x, y)
    found = loss(kernel.flat * math.nan, Batch(np.arange(10), 5))
    assert found.failed
    assert found.events[-1] in (Event.DIVERGED, Event.NOT_POSITIVE_DEFINITE)
    assert found.gradient is None


def test_a_trained_lambda_stays_beside_it():
    kernel = Regularized(machine(), Regularization(1e-2, "absolute"))
    loss = EvidenceLoss(5, True, Regularization(1e-4, "centered"), kernel, images(), one_hot())
    found = loss(kernel.flat, Batch(np.arange(10), 5))
    assert found.regularization == 1e-2
    assert 0 < found.rho < 1
    assert len(found.gradient) == len(kernel.flat)


def test_the_mean_divergence_is_that_over_classes():
    kernel, x, y = machine(), images(), one_hot()
    batch, of = Batch(np.arange(12), 6), Regularization(1e-4, "centered")
    whole, mean = (EvidenceLoss(20, each, of, kernel, x, y)(kernel.flat, batch) for each in (False, True))
    assert mean.measured["kl"] == pytest.approx(whole.measured["kl"] / 3)
    assert whole.objective - mean.objective == pytest.approx((whole.measured["kl"] - mean.measured["kl"]) / 12)


# ---- fits


@cache
def trained(normalization):
    """The objectives of a fit of a deep machine on digits, and its test accuracy."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.as_tensor((digits.images[:, None] - digits.images.mean()) / digits.images.std(), dtype=torch.float32)
    y = torch.eye(10, dtype=torch.float64)[digits.target]
    how = Normalizing(normalization, normalization)
    architecture = Architecture((1, 8, 8), (8, 8, 8), (2, 2, 1), 3, 0.01, 1e-4, "average", how, True, False)
    torch.manual_seed(0)
    kernel = ConvDKM(architecture).to(torch.float32, torch.device("cpu"))
    rng = np.random.default_rng(0)
    machine = WithPosterior.over(kernel.with_patches(x, rng), x[:1], 10, rng)
    loss = EvidenceLoss(20, False, Regularization(1e-4, "centered"), machine, x[:1500], y[:1500])
    sampler, rule = EpochSampler(100).start(x[:1500], y[:1500]), Adam(0.02, 0.8, 0.9, 1e-8)
    vector, values = machine.flat, []
    for i in range(130):
        found = loss(vector, sampler.draw(rng, i))
        vector = rule.step(vector, found.gradient)
        values.append(found.objective)
    fitted = machine.with_flat(vector)
    prediction = fitted.fixed_on(x[:1500]).predict(x[1500:])
    right = (prediction.outputs.argmax(dim=1) == y[1500:].argmax(dim=1)).double().mean()
    return values, float(right)


@pytest.mark.slow
def test_a_deep_machine_learns():
    values, _ = trained("batch")
    assert np.mean(values[30:40]) < np.mean(values[:5])


@pytest.mark.slow
def test_a_deep_machine_learns_with_normalization_and_fails_without():
    """As in Table 1 of Milsom et al. 2023: with none / none the accuracy stays at that of guessing."""
    values, accuracy = trained("batch")
    assert np.mean(values[-10:]) < 1.8
    assert accuracy > 0.35
    values, accuracy = trained("none")
    assert np.mean(values[-10:]) > 2.25
    assert accuracy < 0.2


@pytest.mark.slow
def test_a_run_records_what_its_layers_cost_and_its_head_predicts(kfx, tmp_path):
    code, _, _ = kfx(
        *[
            "run",
            *SMALL,
            "optimizer.iterations=7",
            "optimizer.schedule=milestones",
            "optimizer.milestones=[0.5]",
            "follow.every=4",
            "evaluation.train_error=true",
            "sampler.augment=[crop,flip]",
            "sampler.padding=1",
            "hydra.run.dir=r",
        ]
    )
    assert code == 0
    found = load_run("r")
    trace = found.trace
    layers = [name for name in trace if name.startswith("diagnostic.penalty.")]
    assert layers[0] == "diagnostic.penalty.stem.gram"
    assert len(layers) == 7
    of_outputs = trace["diagnostic.kl"] + trace[layers].sum(axis=1)
    np.testing.assert_allclose(
        trace["objective"], of_outputs / 120 - trace["diagnostic.expected_log_likelihood"], rtol=1e-9
    )
    assert trace["diagnostic.epoch"].tolist() == [1, 1, 1, 2, 2, 2, 3]
    np.testing.assert_allclose(trace["diagnostic.learning_rate"], [0.1] * 4 + [0.01] * 3)
    assert trace["rho"].between(0, 1).all()
    metrics = set(found.evaluation["metric"])
    assert {"head_accuracy", "head_log_likelihood", "head_calibration_error", "head_train_accuracy"} <= metrics
    follow = (tmp_path / "r/follow.csv").read_text()
    assert "rho.stage1_block1" in follow
    assert "rho.top" in follow
    x = torch.as_tensor(np.random.default_rng(0).random((5, 1, 8, 8)))
    kernel = found.kernel
    assert kernel.predict(x).outputs.shape == (5, 10)
    assert float(torch.linalg.eigvalsh(kernel.gram(x))[0]) > 0


@pytest.mark.slow
def test_a_resumed_run_goes_on_bit_for_bit(kfx, tmp_path, monkeypatch):
    words = [*SMALL, "optimizer.iterations=8", "optimizer.schedule=plateau", "optimizer.period=2"]
    words += ["optimizer.patience=0", "sampler.augment=[crop,flip]", "checkpoint.iterations=1", "follow.every=3"]
    assert kfx("run", *words, "hydra.run.dir=whole")[0] == 0
    count = 0
    original = EvidenceLoss.__call__

    def stopping(self, *arguments, **options):
        nonlocal count
        count += 1
        if count == 6:
            raise KeyboardInterrupt
        return original(self, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(EvidenceLoss, "__call__", stopping)
        assert kfx("run", *words, "hydra.run.dir=cut")[0] == 130
    assert kfx("resume", "cut")[0] == 0
    whole, cut = load_run("whole"), load_run("cut")
    assert untimed(whole.trace).equals(untimed(cut.trace))
    assert whole.evaluation.equals(cut.evaluation)
    assert (tmp_path / "whole/follow.csv").read_text() == (tmp_path / "cut/follow.csv").read_text()


@pytest.mark.slow
def test_a_machine_that_diverged_costs_rows_and_not_the_run(kfx, tmp_path):
    words = [*SMALL, "optimizer.iterations=4", "optimizer.learning_rate=300", "follow.every=1"]
    code, _, _ = kfx(
        "run", *words, "optimizer.max_reinitializations=9", "evaluation.train_error=true", "hydra.run.dir=r"
    )
    assert code == 0
    assert "reinitialized" in (tmp_path / "r/trace.csv").read_text()
    one = [*SMALL, "optimizer.iterations=1", "optimizer.learning_rate=300", "evaluation.batches=0", "hydra.run.dir=s"]
    code, _, error = kfx("run", *one)
    assert code == 1
    assert "no evaluation of the trained kernel gave a number" in error
    rows = load_run("s").evaluation
    assert rows[(rows["kernel"] == "trained") & (rows["metric"] == "head_accuracy")]["value"].isna().all()


def test_a_gram_matrix_on_disk_is_that_of_a_machine_with_patches_of_the_images(kfx, tmp_path):
    assert kfx("gram", *SMALL[:8], "sampler.batch_size=50", "evaluation.n_interpolation=[50]")[0] == 0
    (found,) = tmp_path.rglob("gram.npy")
    gram = np.load(found)
    assert gram.shape == (120, 120)
    assert np.linalg.eigvalsh(gram)[0] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["kernel=conv_dkm", "dataset=digits"], "kernel=conv_dkm: takes no objective but its own; set objective=elbo"),
        (["objective=elbo", "dataset=digits"], "objective=elbo: trains a deep kernel machine; use kernel=conv_dkm"),
        ([*SMALL, "dataset=diabetes"], "kernel=conv_dkm: takes images"),
        ([*SMALL, "dataset.n_train=100", "kernel.inducing=[4000,5,6]"], "4000 inducing patches, and the 100 training"),
        ([*SMALL, "kernel.regularization_strength=-1"], "kernel.regularization_strength=-1.0: expected a number >= 0"),
        ([*SMALL, "kernel.strides=[1,2]"], "kernel.strides=[1, 2]: expected 3 numbers, as inducing=[4, 5, 6] has"),
        ([*SMALL, "kernel.inducing=[4,1,6]"], "kernel.inducing=[4, 1, 6]: expected a list of whole numbers >= 2"),
        ([*SMALL, "sampler=dynamic"], "objective=elbo: has one sample a batch"),
        ([*SMALL, "kernel.starts=2"], "objective=elbo: trains all parameters"),
        ([*SMALL, "optimizer=bayesian"], "takes no objective=elbo, which gradients minimise"),
        ([*SMALL, "optimizer.milestones=[0.5,0.4]"], "expected a list of rising numbers > 0 and < 1"),
        (["dataset=diabetes", "sampler.augment=[flip]"], "sampler.augment=['flip']: dataset diabetes has no images"),
        (
            ["dataset=digits", "optimizer=flow_euler", "kernel=rbf", "sampler.augment=[flip]"],
            "sampler.augment=['flip']: optimizer=flow_euler takes images as they are",
        ),
        (
            ["dataset=digits", "optimizer=flow_euler", "kernel=rbf", "sampler=epochs"],
            "optimizer=flow_euler moves points; use sampler=fixed",
        ),
        (["dataset=digits", "sampler.augment=[crop]", "sampler.padding=8"], "images have 8 pixels a side"),
        (["dataset=digits", "sampler=epochs", "sampler.choice=neighbourhood"], "an epoch has every point"),
        (["dataset=diabetes", "dataset.preprocess=[normalize_channels]"], "diabetes has no images; use normalize"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(kfx, words, said):
    code, _, error = kfx("run", *words)
    assert code == 2
    assert said in error


def test_elbo_refuses_targets_of_one_output():
    from kfx.optimizers.elbo import ElboOption

    with pytest.raises(ConfigError, match="takes one output for each class"):
        ElboOption().with_own_parameters(machine().kernel, images(), one_hot()[:, :1], np.random.default_rng(0))
