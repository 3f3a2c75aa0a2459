"""Kernels on a network's features: gradients against one graph of autograd, weights as blocks, networks that are
refused, and the same network trained by cross-entropy."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from kfx import load_run
from kfx.kernels import RBF, NetworkFeatures, Regularized
from kfx.kernels.network_features import dropout_mask
from kfx.kernels.networks import NETWORKS, SameConv2d
from kfx.kernels.with_head import KernelWithHead
from kfx.numerics.regularization import Regularization
from kfx.objectives import interpolation_error, nll, rho, rho_prediction
from kfx.optimizers.classification import ClassificationLoss
from kfx.sampling.samplers import Batch
from tests.slow import slow_after

SMALL = ["kernel=network_features", "dataset=digits", "dataset.n_train=200", "dataset.n_test=100"]
SMALL += ["sampler.batch_size=40", "optimizer.learning_rate=0.003", "device.precision_check=off"]
SMALL += ["evaluation.n_interpolation=[10,50]", "hydra.run.dir=r"]


def network(seed=0, double=True):
    torch.manual_seed(seed)
    made = NETWORKS["small"]((1, 8, 8))
    return made.double() if double else made


def images(n=40, seed=1, dtype=torch.float64):
    return torch.as_tensor(np.random.default_rng(seed).random((n, 1, 8, 8)), dtype=dtype)


def targets(n=40, outputs=3, seed=2):
    return torch.as_tensor(np.random.default_rng(seed).normal(size=(n, outputs)))


def in_one_graph(module, x, y, objective, gamma, held):
    """The objective as autograd sees it: explicit differences, explicit solves."""
    made = module(x)
    r2 = (made[:, None] - made[None, :]).square().sum(dim=2)
    of_batch = 4 / r2.mean()
    gram = torch.exp(-(gamma or (of_batch.detach() if held else of_batch)) * r2)
    n, half, eye = len(x), len(x) // 2, torch.eye(len(x), dtype=x.dtype)
    a = gram + 1e-3 * eye
    sample = gram[:, :half] @ torch.linalg.solve(a[:half, :half], y[:half])
    if objective is rho:
        kept = (y[:half] * torch.linalg.solve(a[:half, :half], y[:half])).sum()
        return 1 - kept / (y * torch.linalg.solve(a, y)).sum()
    if objective is interpolation_error:
        return (y - sample).square().sum()
    if objective is rho_prediction:
        return (y - sample).square().sum() / y.square().sum()
    return (
        (y * torch.linalg.solve(a, y)).sum() + y.shape[1] * torch.logdet(a) + n * y.shape[1] * np.log(2 * np.pi)
    ) / 2


@pytest.mark.parametrize("objective", [rho, interpolation_error, rho_prediction, nll])
@pytest.mark.parametrize(("gamma", "held"), [(0.0, False), (0.0, True), (0.3, False)])
def test_the_pullback_equals_autograd_in_one_graph(objective, gamma, held):
    module, x, y = network(), images(), targets()
    kernel = NetworkFeatures(module, gamma, "held" if held else "differentiated")
    gram, pull = kernel.pullback(x)
    value, g = objective(gram, y, 20, 1e-3)
    found, to_x = pull(g, inputs=True)
    points = x.clone().requires_grad_()
    expected = in_one_graph(module, points, y, objective, gamma, held)
    *weights, of_points = torch.autograd.grad(expected, [*module.parameters(), points])
    flat = torch.cat([each.reshape(-1) for each in weights])
    assert value == pytest.approx(float(expected.detach()), rel=1e-8)
    assert float((found - flat).norm() / flat.norm()) < 1e-8
    assert float((to_x - of_points).norm() / of_points.norm()) < 1e-8


def test_gamma_itself_can_be_trained():
    kernel = NetworkFeatures(network(), 0.3, trainable=["gamma"])
    x, y = images(), targets()

    def value(gamma):
        return rho(kernel.with_flat([gamma]).gram(x), y, 20, 1e-3)[0]

    gram, pull = kernel.pullback(x)
    found = pull(rho(gram, y, 20, 1e-3)[1])
    assert found[0] == pytest.approx((value(0.3 + 1e-5) - value(0.3 - 1e-5)) / 2e-5, rel=1e-6)
    with pytest.raises(ValueError, match="gamma=0"):
        NetworkFeatures(network(), trainable=["gamma"])


def test_a_permuted_batch_has_the_same_gradient():
    kernel, x = NetworkFeatures(network()), images()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    g = torch.as_tensor(np.random.default_rng(0).normal(size=(40, 40)))
    g = g + g.mT
    gram, pull = kernel.pullback(x)
    there, pull_there = kernel.pullback(x[order])
    torch.testing.assert_close(there, gram[order][:, order], rtol=1e-10, atol=1e-12)
    (one, to_x), (other, to_moved) = pull(g, inputs=True), pull_there(g[order][:, order], inputs=True)
    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(to_moved, to_x[order], rtol=1e-9, atol=1e-10)


def test_length_is_of_the_batch_until_it_is_settled():
    kernel, x = NetworkFeatures(network()), images()
    features = kernel.features(x)
    squared = torch.cdist(features, features).square()
    torch.testing.assert_close(kernel.gram(x), torch.exp(-4 * squared / squared.mean()), rtol=1e-8, atol=1e-10)
    fixed = kernel.fixed_on(x)
    assert fixed.parameters["gamma"] == pytest.approx(4 / float(squared.mean()), rel=1e-8)
    torch.testing.assert_close(fixed.gram(x[:5], x[5:]), kernel.gram(x)[:5, 5:], rtol=1e-8, atol=1e-10)
    assert fixed.fixed_on(x[:3]) is fixed
    part = kernel.gram(x[:7], x[7:])  # the length of the second's points, where K(x, y) interpolates y
    torch.testing.assert_close(part, kernel.fixed_on(x[7:]).gram(x[:7], x[7:]), rtol=1e-8, atol=1e-10)


def test_weights_are_blocks_with_the_names_of_the_module():
    module = network()
    kernel = NetworkFeatures(module)
    assert kernel.trainable == tuple(name for name, _ in module.named_parameters())
    assert isinstance(kernel.flat, torch.Tensor)
    assert kernel.flat.dtype == torch.float64
    moved = kernel.with_flat(kernel.flat * 1.5)
    torch.testing.assert_close(moved.flat, kernel.flat * 1.5, rtol=0, atol=0)
    torch.testing.assert_close(moved.module(images()), moved.features(images()), rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(moved.with_flat(kernel.flat.numpy()).flat, kernel.flat)  # as a checkpoint has it
    single = kernel.to(torch.float32, torch.device("cpu"))
    assert single.flat.dtype == single.gram(images(dtype=torch.float32)).dtype == torch.float32
    with pytest.raises(ValueError, match="expected 10000 parameters"):
        kernel.with_flat(kernel.flat[:-1])
    with pytest.raises(ValueError, match="shape"):
        kernel.with_parameters(**{"output.bias": torch.zeros(3)})
    with pytest.raises(ValueError, match="finite"):
        kernel.with_parameters(**{"output.bias": torch.full((16,), torch.nan)})


def test_fresh_weights_follow_the_seed_and_leave_torch_alone():
    kernel = NetworkFeatures(network())
    before = torch.random.get_rng_state()
    one, same, other = (kernel.drawn(np.random.default_rng(seed)).flat for seed in (0, 0, 1))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert not torch.equal(one, kernel.flat)
    mixed = (kernel + RBF(2.0)).drawn(np.random.default_rng(0))
    assert mixed.parameters["1.sigma"] != 2.0
    assert torch.equal(
        mixed.parameters["0.output.bias"], kernel.drawn(np.random.default_rng(0)).parameters["output.bias"]
    )


def test_it_goes_into_sums_and_takes_a_trained_nugget():
    kernel, x = NetworkFeatures(network()) + 0.5 * RBF(2.0), images()
    _, pull = kernel.pullback(x)
    g = torch.eye(40, dtype=torch.float64) + 0.1
    assert pull(g).shape == kernel.flat.shape == (10000 + 2,)
    with_lambda = Regularized(kernel, Regularization(1e-2, "absolute"), trained=True)
    assert with_lambda.pullback(x)[1](g)[-1] == pytest.approx(40 * 1.1)


class Bad(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.what, self.linear = what, nn.Linear(64, 4)

    def forward(self, x):
        if self.what == "in place":
            x.mul_(0.5)
        made = self.linear(x.flatten(1))
        if self.what == "coupled":
            return made - made.mean(dim=0)
        if self.what == "random":
            return made + torch.rand_like(made)
        return {"shape": made[:, None], "tuple": (made, made), "short": made[:-1], "dtype": made.half()}.get(
            self.what, made
        )


@pytest.mark.parametrize(
    ("what", "match"),
    [
        ("in place", "in place"),
        ("coupled", "depend on other points"),
        ("random", "different features"),
        ("shape", r"expected \(n, features\)"),
        ("tuple", "tuple"),
        ("short", r"expected \(n, features\)"),
        ("dtype", "float16"),
    ],
)
def test_networks_that_are_no_feature_maps_are_refused(what, match):
    with pytest.raises(ValueError, match=match):
        NetworkFeatures(Bad(what)).require_good_on(images(5, dtype=torch.float32))
    NetworkFeatures(Bad("good")).require_good_on(images(5, dtype=torch.float32))
    with pytest.raises(ValueError, match="fails on points of shape"):
        NetworkFeatures(Bad("good")).require_good_on(torch.rand(5, 1, 7, 7))


def test_networks_without_weights_of_their_own_are_refused():
    for module, match in (
        (nn.Flatten(), "no parameters"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8)), "BatchNorm1d couples"),
        (nn.Sequential(nn.Flatten(), nn.LazyLinear(8)), "ready to use"),
        (
            nn.Sequential(OrderedDict(flat=nn.Flatten(), head=nn.Linear(64, 8))),
            "parameter head.weight, a name of kfx's own",
        ),
    ):
        with pytest.raises(ValueError, match=match):
            NetworkFeatures(module)
    loose = nn.Sequential(OrderedDict(flat=nn.Flatten(), own=Bad("good")))
    loose.own.extra = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="cannot draw its weights anew"):
        NetworkFeatures(loose).drawn(np.random.default_rng(0))
    assert NetworkFeatures(loose, remake=lambda: loose).drawn(np.random.default_rng(0))


def test_mixed_precision_is_near_and_the_rest_stays_as_it_is():
    x = images(dtype=torch.float32)
    exact, mixed = (NetworkFeatures(network(double=False), mixed_precision=each) for each in (False, True))
    gap = (mixed.features(x) - exact.features(x)).abs().max() / exact.features(x).abs().max()
    assert 0 < float(gap) < 0.03
    gram, pull = mixed.pullback(x)
    assert gram.dtype == mixed.features(x).dtype == pull(torch.eye(40)).dtype == torch.float32


def test_what_a_module_holds_fixed_stays_fixed():
    module = network()
    module.layer1.requires_grad_(False)
    kernel = NetworkFeatures(module)
    assert not any(name.startswith("layer1") for name in kernel.trainable)
    assert kernel.flat.shape == (10000 - 80,)
    drawn = kernel.drawn(np.random.default_rng(0))
    assert not torch.equal(drawn.parameters["layer1.conv.bias"], kernel.parameters["layer1.conv.bias"]), (
        "drawn by seed too"
    )


def test_points_that_changed_are_seen_again():
    kernel, points = NetworkFeatures(network()), images().numpy().copy()
    before = kernel.gram(points)
    points[0] *= 0.5
    assert not np.array_equal(kernel.gram(points), before)


def test_a_vector_that_changed_leaves_the_kernel_as_it_is():
    kernel = NetworkFeatures(network())
    vector = kernel.flat
    moved = kernel.with_flat(vector)
    vector += 1
    assert torch.equal(moved.flat, kernel.flat)


def test_features_that_are_all_the_same_fail_in_words():
    kernel = NetworkFeatures(network())
    flat = kernel.with_flat(kernel.flat * 0)
    assert flat.fixed_on(images()) is flat
    assert not torch.isfinite(flat.gram(images())[0, 1])
    map_of, compare = kernel.fixed_on(images()).feature_map_and_kernel()
    features = map_of(images())
    torch.testing.assert_close(compare.gram(features), kernel.fixed_on(images()).gram(images()), rtol=1e-8, atol=1e-10)


def test_dropout_does_nothing_in_a_kernel():
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5)).double().train()
    kernel = NetworkFeatures(module)
    assert torch.equal(kernel.gram(images()), kernel.gram(images()))
    assert module.training, "the module that was given stays as it is"


@pytest.mark.parametrize(("size", "stride", "kernel"), [(28, 1, 6), (28, 2, 5), (14, 2, 4), (9, 2, 3), (5, 3, 2)])
def test_same_convolutions_have_as_many_pixels_as_strides(size, stride, kernel):
    layer = SameConv2d(1, 1, kernel, stride)
    assert layer(torch.zeros(1, 1, size, size)).shape[2:] == (-(-size // stride),) * 2


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_every_network_takes_every_image(name, shape):
    assert NETWORKS[name](shape)(torch.zeros(2, *shape)).ndim == 2


def test_the_papers_network_has_its_layers():
    sizes = [tuple(p.shape) for n, p in NETWORKS["mnist"]((1, 28, 28)).named_parameters() if n.endswith("weight")]
    assert sizes == [(6, 1, 6, 6), (12, 6, 5, 5), (24, 12, 4, 4), (200, 24 * 7 * 7), (300, 200)]


# ---- the same network by cross-entropy


def headed(x, outputs=3):
    return KernelWithHead.over(NetworkFeatures(network()), x[:1], outputs, np.random.default_rng(0))


@pytest.mark.parametrize("inner_weight", [0.0, 0.7])
def test_gradient_of_cross_entropy_agrees_with_differences(inner_weight):
    x, y = images(), torch.eye(3, dtype=torch.float64)[torch.arange(40) % 3]
    kernel, rng = headed(x), np.random.default_rng(3)
    loss = ClassificationLoss(0.3, inner_weight, Regularization(1e-2, "absolute"), kernel, x, y)
    batch = Batch(rng.permutation(40)[:20], 10)
    here = loss(kernel.flat, batch)
    for i in [0, 71, 80, 700, 2000, len(kernel.flat) - 40, len(kernel.flat) - 1]:
        step = torch.zeros_like(kernel.flat)
        step[i] = 1e-5
        ends = [loss(kernel.flat + sign * step, batch).objective for sign in (1, -1)]
        assert float(here.gradient[i]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-9)


def test_without_a_step_it_is_torchs_cross_entropy_and_the_kernels_rho():
    x, y = images(), torch.eye(3, dtype=torch.float64)[torch.arange(40) % 3]
    kernel = headed(x)
    loss = ClassificationLoss(0.3, 0.0, Regularization(1e-2, "absolute"), kernel, x, y)
    found = loss(kernel.flat, Batch(np.arange(40), 20), gradient=False)
    expected = nn.functional.cross_entropy(kernel.predict(x).outputs, y.argmax(dim=1))
    assert found.objective == pytest.approx(float(expected), rel=1e-12)
    assert found.rho == pytest.approx(rho(kernel.gram(x), y, 20, 1e-2)[0], rel=1e-10)


def test_dropout_follows_the_batch_and_keeps_the_mean():
    masks = [dropout_mask(torch.ones(400, 50), 0.25, batch) for batch in (b"one", b"one", b"other")]
    assert torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[0], masks[2])
    assert masks[0].unique().tolist() == pytest.approx([0, 4 / 3])
    assert float(masks[0].mean()) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("gamma", [0.0, 0.3])
def test_the_gradient_with_dropout_agrees_with_differences(gamma):
    kernel, x, y = NetworkFeatures(network(), gamma, dropout=0.4), images(), targets()

    def value(flat):
        return rho(kernel.with_flat(flat).pullback(x)[0], y, 20, 1e-2)

    gram, pull = kernel.pullback(x)
    found = pull(value(kernel.flat)[1])
    for i in [0, 71, 80, 700, 2000, len(kernel.flat) - 1]:
        step = torch.zeros_like(kernel.flat)
        step[i] = 1e-5
        ends = [value(kernel.flat + sign * step)[0] for sign in (1, -1)]
        assert float(found[i]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-5, abs=1e-9)
    whole = NetworkFeatures(network(), gamma)
    assert torch.equal(kernel.gram(x), whole.gram(x)), "all features outside of a step"
    assert not torch.allclose(gram, whole.gram(x), atol=0.01)
    with pytest.raises(ValueError, match=r"dropout=1.0: expected a number >= 0 and < 1"):
        NetworkFeatures(network(), dropout=1.0)


# ---- runs


@pytest.mark.parametrize("objective", slow_after(1, ["cross_entropy", "rho", "interpolation_error"]))
def test_a_run_leaves_norms_blocks_errors_and_pictures(kfx, objective):
    words = [f"objective={objective}", "optimizer.iterations=30", "follow.every=10", "evaluation.draws=5"]
    code, out, err = kfx("run", *SMALL, *words, "evaluation.balanced=true", "figures=true")
    assert code == 0, err
    assert "‖parameters‖" in out
    run = load_run("r")
    assert "parameter.output.weight.norm" in run.trace
    assert run.trace.filter(like="parameter.").shape[1] < 20
    final = run.metrics["parameters"]["final"]
    assert final["output.weight.norm"] == pytest.approx(float(run.kernel.parameters["output.weight"].norm()), rel=1e-6)
    assert final["gamma"] > 0
    by = run.evaluation.pivot_table(index=["kernel", "n_interpolation"], columns="metric", values="value")
    assert by.loc["trained", 50]["accuracy"] > by.loc["initial", 50]["accuracy"]
    followed = pd.read_csv("r/follow.csv")
    assert {"error", "distance_ratio"} <= set(followed["metric"])
    assert ("head_error" in set(followed["metric"])) == (objective == "cross_entropy")
    assert len(pd.read_csv("r/draws.csv")) == 5
    assert len(run.metrics["last_iterations"]) == (3 if objective == "cross_entropy" else 2)
    assert {"rho.png", "errors.png", "draws.png", "parameters.png"} <= {
        path.name for path in (run.directory / "figures").iterdir()
    }


@pytest.mark.slow
def test_the_recorded_kernel_predicts_what_was_evaluated(kfx):
    assert kfx("run", *SMALL, "objective=cross_entropy", "optimizer.iterations=20", "figures=false")[0] == 0
    run = load_run("r")
    assert isinstance(run.kernel, KernelWithHead)
    rows = run.evaluation[(run.evaluation["kernel"] == "trained") & (run.evaluation["metric"] == "head_accuracy")]
    from kfx.experiment.config import check
    from kfx.numerics.streams import Streams

    data = check(run.config).dataset.build(Streams(0)["data"])
    predicted = run.kernel.predict(torch.as_tensor(data.x_test)).outputs.argmax(dim=1).numpy()
    assert float(rows["value"].iloc[0]) == pytest.approx(float(np.mean(predicted == data.labels_test)))


def test_a_record_has_the_weights_to_the_last_bit(kfx):
    words = ["objective=interpolation_error", "optimizer.iterations=3", "figures=false"]
    assert kfx("run", *SMALL, *words)[0] == 0
    with np.load("r/parameters-final.npz") as stored:
        assert stored["output.weight"].dtype == np.float64
        np.testing.assert_array_equal(load_run("r").kernel.parameters["output.weight"], stored["output.weight"])


@pytest.mark.slow
def test_a_network_in_a_sum_starts_from_weights_of_the_seed(kfx):
    parts = "kernel.parts=[{name: network_features}, {name: rbf, sigma: 3.0}]"
    words = [*SMALL[1:-1], "kernel=sum", parts, "optimizer.iterations=1", "figures=false"]
    for seed in (0, 1):
        code, _, err = kfx("run", *words, f"seed={seed}", f"hydra.run.dir=s{seed}")
        assert code == 0, err
    starts = [load_run(f"s{seed}").metrics["parameters"]["initial"] for seed in (0, 1)]
    assert starts[0]["0.output.weight.norm"] != starts[1]["0.output.weight.norm"]
    assert starts[0]["1.sigma"] == starts[1]["1.sigma"] == 3.0
    greens = "kernel.parts=[{name: greens_function}, {name: rbf}]"
    code, _, err = kfx("run", "dataset=three_bumps", "kernel=sum", greens)
    assert (code, "use dataset=elliptic_1d" in err, err.count("\n")) == (2, True, 1), err


@pytest.mark.slow
def test_weights_are_of_the_seed(kfx):
    few = ["optimizer.iterations=2", "figures=false", "evaluation.batches=0"]
    for seed, folder in ((0, "a"), (0, "b"), (1, "c")):
        assert kfx("run", *SMALL[:-1], *few, f"seed={seed}", f"hydra.run.dir={folder}")[0] == 0
    a, b, c = (load_run(folder).metrics["parameters"]["final"] for folder in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset=diabetes", "dataset.n_train=null"], "takes images"),
        (["optimizer=bayesian"], "at most 300 parameters"),
        (["optimizer=finite_difference"], "at most 1000 parameters"),
        (["optimizer=grid"], "no bounds"),
        (["objective=cross_entropy", "optimizer=grid"], "which gradients minimise"),
        (["objective=cross_entropy", "kernel=rbf"], "use network_features"),
        (["objective=cross_entropy", "sampler=dynamic"], "sampler=fixed"),
        (["objective=cross_entropy", "kernel.dropout=0.5"], "set kernel.dropout=0"),
        (["objective=cross_entropy", "optimizer=flow_euler"], "which gradients minimise"),
        (["evaluation.draws=50"], "do not hold so many"),
        (["+kernel.initial_range.nothing=[0,1]"], "not a trainable parameter"),
        (["kernel.gamma=-1"], "kernel.gamma"),
        (["kernel.mixed_precision=true"], "needs device.dtype=float32"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(kfx, words, said):
    small = [word for word in SMALL if not word.startswith("optimizer.learning")]
    code, _, err = kfx("run", *small, *words)
    assert (code, err.count("\n"), said in err) == (2, 1, True), err


def test_truncated_weights_are_drawn_as_in_the_lesson():
    from kfx.kernels.networks import draw_truncated, mnist_300

    module = mnist_300((1, 28, 28))
    torch.manual_seed(0)
    draw_truncated(module)
    blocks = dict(module.named_parameters())
    assert all(bool((value == 0.1).all()) for name, value in blocks.items() if name.endswith("bias"))
    weights = torch.cat([value.detach().flatten() for name, value in blocks.items() if name.endswith("weight")])
    assert float(weights.abs().max()) <= 0.2
    assert float(weights.std()) == pytest.approx(0.088, rel=0.02)  # of a normal distribution cut at two deviations
    assert module(torch.rand(2, 1, 28, 28)).shape == (2, 300)
    assert bool((module(torch.rand(2, 1, 28, 28)) >= 0).all())
