"""Emulators: components of outputs, a kernel for each, the parts of KernelFlows.jl, and simulators."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import multivariate_normal

import kfx
from kfx import ConfigError, KernelFlowRegressor, load_run
from kfx.data.dataset import Dataset, reduced, with_targets
from kfx.data.simulators import SIMULATORS, simulate
from kfx.experiment.plan import Plan
from kfx.kernels import ARD, RBF, Linear, Matern, Scaled, Sum
from kfx.numerics.calibration import of_vectors
from kfx.numerics.streams import Streams
from kfx.objectives import loo
from kfx.optimizers.gradient import AMSGrad
from kfx.record.trace import Trace
from kfx.running.story import resume, run
from kfx.sampling.samplers import CentresSampler
from tests.faults.harness import results
from tests.page_parts import assert_same_page
from tests.slow import slow_after

FEW = ("optimizer.iterations=15", "figures=false", "device.precision_check=off", "device.threads=1", "hydra.run.dir=r")


def spectra(n=60, m=12, seed=0):
    """Three inputs, and outputs that are smooth functions of them."""
    x = np.random.default_rng(seed).uniform(size=(n, 3))
    w = np.linspace(0, 1, m)
    y = np.sin(3 * x[:, :1] * w + x[:, 1:2]) + x[:, 2:] * w**2 + 5
    return x, y * np.geomspace(1, 100, m)


def as_file(n=60):
    x, y = spectra(n + 20)
    np.savez("spectra.npz", x_train=x[:n], y_train=y[:n], x_test=x[n:], y_test=y[n:])
    return x, y


# ---- KernelFlows.jl


def loss_of_kernel_flows_jl(log_alpha, x, y, centres):
    """ρ_RMSE: each centre is left out of the batch and predicted from the rest by an explicit inverse.

    log_alpha: logarithms of λ, (features,), and of the weight and length of the Matérn kernel, the weight of the linear
    kernel, and the nugget. The first points are the centres.
    """
    scales, (weight, length, slope, nugget) = log_alpha[:-4].exp(), log_alpha[-4:].exp()
    z = x * scales
    h = (3 * ((z[:, None] - z[None]).square().sum(dim=2) + 1e-300)).sqrt() / length
    gram = weight * (1 + h) * torch.exp(-h) + slope * z @ z.mT + nugget * torch.eye(len(z), dtype=z.dtype)
    errors = []
    for i in range(centres):
        rest = [j for j in range(len(z)) if j != i]
        errors.append((gram[i, rest] @ torch.linalg.inv(gram[rest][:, rest]) @ y[rest] - y[i]) ** 2)
    return torch.stack(errors).mean()


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_those_of_kernel_flows_jl(seed):
    rng, centres = np.random.default_rng(seed), 5
    x, y = rng.normal(size=(24, 4)), rng.normal(size=24)
    log_alpha = torch.tensor(rng.normal(size=8) * 0.3 - [0, 0, 0, 0, 0, 0, 2, 4], requires_grad=True)
    expected = loss_of_kernel_flows_jl(log_alpha, torch.tensor(x), torch.tensor(y), centres)
    (slope,) = torch.autograd.grad(expected, log_alpha)

    alpha = log_alpha.detach().exp().numpy()
    weight, length, linear, nugget = alpha[-4:]
    sum_ = Sum([Scaled(Matern(length, 1.5), weight**0.5), Scaled(Linear(0.0, trainable=[]), linear**0.5)])
    kernel = ARD(sum_, 1 / alpha[:4])
    last = np.r_[centres : len(x), :centres]  # kfx's batch has the points that are predicted at its end
    gram, pull = kernel.pullback(x[last])
    value, cotangent = loo(gram, y[last], len(x) - centres, nugget, form="held_out")
    assert value == pytest.approx(expected.item(), rel=1e-8)
    gradient = dict(zip(kernel.names, pull(cotangent) * kernel.flat, strict=True))
    found = [-gradient[f"lengths.{i}"] for i in range(4)]
    found += [gradient["0.coefficient"] / 2, gradient["0.0.sigma"], gradient["1.coefficient"] / 2]
    np.testing.assert_allclose(found, slope[:-1].numpy(), rtol=1e-8, atol=1e-8)
    assert nugget * np.trace(cotangent) == pytest.approx(slope[-1].item(), rel=1e-8)


def test_a_batch_has_centres_their_neighbours_and_random_points():
    x = torch.tensor(np.random.default_rng(0).normal(size=(300, 2)))
    sampler = CentresSampler(64, 5, None).start(x, x)
    batch = sampler.draw(np.random.default_rng(1))
    assert len(set(batch.indices.tolist())) == 64
    assert batch.sample_size == 59
    crowded = CentresSampler(12, 2, 100).start(x, x).draw(np.random.default_rng(2)).indices
    for centre in crowded[10:]:  # where there are more neighbours than places the nearest of each come first
        nearest = np.argsort(((x - x[centre]) ** 2).sum(dim=1).numpy())[:4]
        assert set(nearest.tolist()) <= set(crowded.tolist())
    for centre in batch.indices[59:]:
        nearest = np.argsort(((x - x[centre]) ** 2).sum(dim=1).numpy())[:5]
        assert set(nearest.tolist()) <= set(batch.indices.tolist()), "twice as many neighbours as features, and itself"


def test_amsgrad_has_one_second_moment_that_never_falls():
    rule, at = AMSGrad(0.1, 0.9, 0.9, 0.0), np.zeros(2)
    gradients = [np.array([3.0, 4.0]), np.array([0.0, 1.0])]
    mean, square, largest = np.zeros(2), 0.0, 0.0
    expected = at
    for gradient in gradients:
        at = rule.step(at, gradient)
        mean, square = 0.9 * mean + 0.1 * gradient, 0.9 * square + 0.1 * gradient @ gradient
        largest = max(largest, square)
        expected = expected - 0.1 * mean / largest**0.5
    np.testing.assert_allclose(at, expected)
    assert largest > square


# ---- components


@pytest.mark.parametrize(("how", "scale"), [("pca", "centered"), ("pca", "standardized"), ("cca", "standardized")])
def test_components_have_unit_variance_and_give_the_targets_back(how, scale):
    x, y = spectra()
    data = with_targets(Dataset("d", x, y, x[:5], y[:5]), scale)
    whole = reduced(data, how, 3 if how == "cca" else 0.9999, 1e-6)
    scores = whole.targets
    np.testing.assert_allclose(scores.mean(axis=0), 0, atol=1e-9)
    np.testing.assert_allclose(scores.T @ scores / len(x), np.eye(scores.shape[1]), atol=1e-3)
    left = ((whole.in_units(scores) - y) / whole.target_scale) ** 2
    np.testing.assert_allclose(left.mean(axis=0), whole.reduction.left_out, rtol=1e-6, atol=1e-12)
    if how == "pca":
        assert left.sum() <= 1e-4 * ((data.targets - data.targets.mean(axis=0)) ** 2).sum()
    spread = whole.deviation_in_units(np.zeros((1, scores.shape[1])))
    np.testing.assert_allclose(spread[0], np.sqrt(whole.reduction.left_out) * whole.target_scale)


def test_principal_components_are_those_of_scikit_learn():
    from sklearn.decomposition import PCA

    x, y = spectra()
    scores = reduced(with_targets(Dataset("d", x, y, x, y), "centered"), "pca", 3, 0.01).targets
    theirs = PCA(3, whiten=True).fit_transform(y) * np.sqrt(len(y) / (len(y) - 1))
    np.testing.assert_allclose(np.abs(scores), np.abs(theirs), rtol=1e-6, atol=1e-8)


def test_canonical_directions_are_those_of_scikit_learn():
    from sklearn.cross_decomposition import CCA

    x, y = spectra(200, 4)
    y = y + np.random.default_rng(1).normal(size=y.shape) * y.std(axis=0) * 0.1
    scores = reduced(with_targets(Dataset("d", x, y, x, y), "standardized"), "cca", 2, 1e-10).targets
    theirs = CCA(2, max_iter=5000, tol=1e-12).fit(x, y).transform(x, y)[1]
    for own, their in zip(scores.T, theirs.T, strict=True):
        assert abs(np.corrcoef(own, their)[0, 1]) == pytest.approx(1, abs=1e-4)


# ---- runs and estimators


@pytest.mark.parametrize("outputs", slow_after(1, ["pca", "cca", "shared", "none"]))
def test_a_run_with_components_predicts_what_it_recorded(kfx, outputs, in_folder):
    x, _ = as_file()
    words = {
        "pca": ["outputs.reduce=pca"],
        "cca": ["outputs.reduce=cca", "outputs.components=3"],
        "shared": ["outputs.reduce=pca", "outputs.kernels=shared"],
        "none": ["outputs.kernels=separate"],
    }[outputs]
    code, _, err = kfx("run", "dataset=arrays", "dataset.path=spectra.npz", *words, *FEW)
    assert code == 0, err
    run = load_run("r")
    recorded = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    found = run.predict(x[60:])
    for kind in ("prediction", "deviation"):
        np.testing.assert_allclose(found.filter(like=kind), recorded.filter(like=kind), rtol=1e-6)
    target, prediction = (recorded.filter(like=kind).to_numpy() for kind in ("target", "prediction"))
    mse = run.evaluation.query("kernel == 'trained' and metric == 'mse'")["value"].item()
    assert mse == pytest.approx(np.mean((target - prediction) ** 2))
    assert len(run.kernels) == {"pca": len(run.kernels), "cca": 3, "shared": 1, "none": 12}[outputs]
    says_whose = "(geometric means of the kernels' λ)" in "\n".join(run.summary())
    assert says_whose == (outputs != "shared"), "there is one λ"


def test_each_output_has_the_kernel_of_a_fit_to_it_alone():
    x, y = spectra()
    settings = {"optimizer": {"name": "adam", "iterations": 10}}
    both = KernelFlowRegressor("rbf", outputs={"kernels": "separate"}, **settings).fit(x, y[:, :2])
    for i in range(2):
        alone = KernelFlowRegressor("rbf", **settings).fit(x, y[:, i])
        np.testing.assert_allclose(both.components_[i].kernel_.flat, alone.kernel_.flat, rtol=1e-6)
        np.testing.assert_allclose(both.predict(x)[:, i], alone.predict(x), rtol=1e-6)


def test_a_refit_forgets_the_kernels_of_the_fit_before():
    x, y = spectra()
    settings = {"optimizer": {"name": "none", "iterations": 1}}
    model = KernelFlowRegressor("rbf", outputs={"kernels": "separate"}, **settings).fit(x, y[:, :3])
    assert "3 kernels, in components_" in repr(model)
    model.set_params(outputs=None).fit(x, y[:, :2])
    fresh = KernelFlowRegressor("rbf", **settings).fit(x, y[:, :2])
    np.testing.assert_array_equal(model.predict(x), fresh.predict(x))
    with pytest.raises(ConfigError, match=r"outputs='?pca"):
        KernelFlowRegressor(outputs="pca").fit(x, y)


def test_deviations_and_samples_of_components_are_in_the_units_of_the_targets():
    x, y = spectra(120)
    model = KernelFlowRegressor("rbf", outputs={"reduce": "pca", "components": 3})
    model.set_params(optimizer={"name": "adam", "iterations": 20}).fit(x[:100], y[:100])
    mean, deviation = model.predict(x[100:], return_std=True)
    assert mean.shape == deviation.shape == (20, 12)
    inside = np.abs(mean - y[100:]) < 1.96 * deviation
    assert 0.8 < inside.mean() <= 1
    drawn = model.sample_y(x[100:], 400)
    assert drawn.shape == (20, 12, 400)
    np.testing.assert_allclose(drawn.mean(axis=2), mean, rtol=0.05)
    assert (drawn.std(axis=2) < 1.5 * deviation).all()


NOISY = np.random.default_rng(0)
OF_NOISE = NOISY.normal(size=(90, 4))


@pytest.mark.parametrize("outputs", [{"reduce": "pca"}, {"reduce": "cca", "components": 2}, {"kernels": "separate"}])
def test_noisy_outputs_are_learned_and_judged_as_by_a_run(kfx, in_folder, outputs):
    x, rng = OF_NOISE, np.random.default_rng(1)
    y = np.stack([np.sin(x[:, 0]), x[:, 1] ** 2], axis=1) @ rng.normal(size=(2, 3)) + 0.3 * rng.normal(size=(90, 3))
    np.savez("noisy.npz", x_train=x[:70], y_train=y[:70], x_test=x[70:], y_test=y[70:])
    words = [f"outputs.{key}={value}" for key, value in outputs.items()]
    common = ["dataset=arrays", "dataset.path=noisy.npz", "optimizer.iterations=5", "evaluation.save_predictions=true"]
    code, _, err = kfx("run", *common, *words, "figures=false", "hydra.run.dir=r")
    assert code == 0, err
    found = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    fitted = KernelFlowRegressor(outputs=outputs, optimizer={"iterations": 5}).fit(x[:70], y[:70])
    for name, values in zip(("prediction", "deviation"), fitted.predict(x[70:], return_std=True), strict=True):
        np.testing.assert_allclose(found[[f"{name}.{i}" for i in range(3)]], values, rtol=1e-9)


@pytest.mark.slow
def test_outputs_have_the_covariance_of_their_components(kfx, in_folder):
    x, y = as_file()
    words = ("dataset=arrays", "dataset.path=spectra.npz", "outputs.reduce=pca", "outputs.components=3")
    assert kfx("run", *words, *FEW, "dataset.preprocess=[]")[0] == 0
    run = load_run("r")
    model = run.estimator()
    mean, (deviation, basis, left_out) = model.predict(x[60:]), model.predict_covariance(x[60:])
    covariance = (basis.T * deviation[:, None] ** 2) @ basis + np.diag(left_out)
    single = model.predict(x[60:], return_std=True)[1]
    np.testing.assert_allclose(np.sqrt(np.diagonal(covariance, axis1=1, axis2=2)), single, rtol=1e-8)
    logs = [multivariate_normal(m, c).logpdf(t) for m, c, t in zip(mean, covariance, y[60:], strict=True)]
    measured = run.evaluation.query("kernel == 'trained' and metric == 'nlpd_of_vector'")["value"].item()
    assert measured == pytest.approx(-np.mean(logs) / y.shape[1], rel=1e-6)
    with pytest.raises(ValueError, match="no components"):
        KernelFlowRegressor("rbf", optimizer={"name": "none", "iterations": 1}).fit(x, y).predict_covariance(x)


def test_the_density_of_vectors_keeps_under_changes_of_units():
    rng = np.random.default_rng(0)
    error, deviation, basis = rng.normal(size=(4, 5)), rng.uniform(1, 2, (4, 2)), rng.normal(size=(2, 5))
    left_out, units = rng.uniform(0.1, 1, 5), np.array([1, 1e5, 1e-5, 3, 7])
    own = of_vectors(error, deviation, basis, left_out)
    scaled = of_vectors(error * units, deviation, basis * units, left_out * units**2)
    assert scaled == pytest.approx(own + np.log(units).mean())
    assert math.isnan(of_vectors(error, deviation, basis, left_out * [0, 1, 1, 1, 1]))


def test_the_density_of_vectors_whose_components_are_all_kept():
    rng = np.random.default_rng(0)
    error, deviation, basis = rng.normal(size=(6, 3)), rng.uniform(1, 2, (6, 3)), rng.normal(size=(3, 3))
    logs = [multivariate_normal(cov=(basis.T * s**2) @ basis).logpdf(e) for e, s in zip(error, deviation, strict=True)]
    assert of_vectors(error, deviation, basis, np.zeros(3)) == pytest.approx(-np.mean(logs) / 3, rel=1e-9)
    assert math.isnan(of_vectors(error, deviation, basis * [[1], [1], [0]], np.zeros(3)))


def test_each_component_has_its_rows_of_the_trace_and_its_parameters(kfx, in_folder):
    as_file()
    words = ("run", "dataset=arrays", "dataset.path=spectra.npz", "outputs.reduce=pca", "outputs.components=3")
    assert kfx(*words, *FEW)[0] == 0
    whole = load_run("r").trace
    assert sorted(whole["diagnostic.fold"].unique()) == [0, 1, 2]
    assert len(json.loads(Path("r/metrics.json").read_text())["parameters"]["folds"]) == 3


@pytest.mark.parametrize(
    "evaluation", slow_after(1, [[], ["evaluation=k_fold", "evaluation.folds=2"]]), ids=["test points", "folds"]
)
def test_what_a_kill_leaves_goes_on_with_the_component_where_it_stopped(in_folder, monkeypatch, evaluation):
    x, y = as_file()
    np.savez("table.npz", x=x, y=y)
    path = "table.npz" if evaluation else "spectra.npz"
    words = ["dataset=arrays", f"dataset.path={path}", "outputs.reduce=pca", "outputs.components=2", *evaluation]
    words += ["dataset.n_test=0"] * bool(evaluation)
    plan = Plan.of_words([*words, *FEW[:-1], "optimizer.iterations=6", "checkpoint.iterations=2"])
    written, row = [0], Trace.row

    def watched(*arguments):
        shown = row(*arguments)
        if written[0] == 9:  # in the second component
            shutil.copytree("whole", "killed")
        written[0] += 1
        return shown

    monkeypatch.setattr(Trace, "row", watched)
    assert run(plan, in_folder / "whole") == 0
    monkeypatch.setattr(Trace, "row", row)
    assert resume(in_folder / "killed") == 0
    assert results(in_folder / "killed") == results(in_folder / "whole")
    assert written[0] == 12 * (1 + bool(evaluation))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset=digits", "outputs.reduce=pca"], "outputs.reduce=pca: takes targets that are numbers, not classes"),
        (["dataset=dynamics", "outputs.reduce=pca"], "not windows of series"),
        (
            ["outputs.kernels=separate", "optimizer=flow_euler"],
            "does not go with optimizer=flow_euler, which moves points",
        ),
        (["outputs.kernels=separate", "evaluation.train_error=true"], "does not go with evaluation.train_error=true"),
        (["outputs.components=0"], "outputs.components"),
        (["outputs.components=1.5"], "outputs.components"),
        (["outputs.reduce=pca", "outputs.components=7"], "outputs.components=7: the training points give 1"),
        (["sampler=centres", "sampler.batch_size=5"], "a batch has 5 points"),
        (["dataset=digits", "kernel=emulator"], "kernel=emulator: takes a table"),
    ],
)
def test_wrong_outputs_are_one_line(kfx, words, said):
    code, _, err = kfx("run", *words, *FEW)
    assert code != 0
    assert said in err
    assert "Traceback" not in err


def test_the_experiment_of_kernel_flows_jl_is_a_config(kfx):
    words = ("dataset=simulator", "dataset.n_train=120", "dataset.n_test=50", "kernel=emulator", "sampler=centres")
    words += ("sampler.batch_size=64", "objective=loo", "objective.form=held_out", "regularization.selection=trained")
    code, _, err = kfx("run", *words, "optimizer=amsgrad", "optimizer.space=log", *FEW)
    assert code == 0, err
    trace = load_run("r").trace
    assert trace["parameter.regularization"].nunique() > 1


def component_by_isofit(known, inverse_lengths, theta, alpha, x, vectors, values, mean, deviation):
    """A component at x, (n,), as ISOFIT computes it: with distances from inner products, which round."""
    z = (x - mean) / deviation @ (vectors.T / values) * inverse_lengths
    square = (z**2).sum(axis=1)[:, None] + (known**2).sum(axis=0) - 2 * z @ known
    assert (square > 0).all(), "ISOFIT takes the root"
    h = np.sqrt(3 * square) / theta[1]
    return (theta[0] * (1 + h) * np.exp(-h) + theta[2] * z @ known) @ alpha


def predicted_by_isofit(file, x, component=component_by_isofit):
    """What ISOFIT's engine computes from an emulator of the file, without a sensor's response: (n, outputs)."""
    geometry = file["G"]
    components = []
    for number in range(1, len(file)):
        own, proj = file[f"M{number}"], geometry[f"Xproj{number}"]
        parts = (own["Z"], own["lambda"], own["theta"], own["h"])
        points = (proj["vectors"], proj["values"], geometry["Xmean"], geometry["Xstd"])
        components.append(component(*(part[()] for part in parts), x, *(part[()] for part in points)))
    basis = geometry["Yproj/vectors"][()].T * geometry["Yproj/values"][()]
    return np.stack(components, axis=1) @ basis.T * geometry["Ystd"][()] + geometry["Ymean"][()]


@pytest.mark.slow
def test_isofit_reads_the_predictions_of_a_run(kfx, in_folder):
    h5py = pytest.importorskip("h5py")
    x, _ = as_file()
    words = ("run", "dataset=arrays", "dataset.path=spectra.npz", "dataset.preprocess=[normalize]")
    assert kfx(*words, "outputs.reduce=pca", "kernel=emulator", *FEW)[0] == 0
    code, out, err = kfx("export", "isofit", "r", "--to", "out.h5")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "out.h5: 1 emulator of 3 inputs, N = 60"
    assert "note: wls numbers the outputs, which have no lengths" in out
    assert "note: ISOFIT reads 4 emulators" in out
    with h5py.File("out.h5") as file:
        assert len(file) == 6 + 1, "ISOFIT takes six keys beside the emulators"
        np.testing.assert_allclose(file["xmax"][()], x[:60].max(axis=0))
        components = [component_by_isofit]
        if importlib.util.find_spec("isofit"):
            from isofit.atmosphere.engines.kernel_flows import predict_M

            components.append(predict_M)
        for points in (x, x[:60] + 1e-9):  # seen, new, and beside the seen ones
            expected = load_run("r").predict(points).filter(like="prediction")
            for component in components:
                np.testing.assert_allclose(predicted_by_isofit(file["MVM1"], points, component), expected, rtol=1e-8)


@pytest.mark.slow
def test_a_table_names_wavelengths_and_inputs_for_isofit(kfx, in_folder):
    h5py = pytest.importorskip("h5py")
    x, y = spectra(60, 4)
    columns = ["H2OSTR", "solar_zenith", "AERFRAC_2"]
    frame = pd.DataFrame(np.c_[x, y], columns=[*columns, "400", "500", "600", "700"])
    frame.to_csv("t.csv", index=False)
    words = ("run", "dataset=table", "dataset.path=t.csv", "dataset.target=['400','500','600','700']")
    words += ("outputs.reduce=pca", "outputs.components=2", "kernel=emulator")
    assert kfx(*words, *FEW)[0] == 0
    code, _, err = kfx("export", "isofit", "r", "r", "r", "r", "--to", "out.h5")
    assert code == 0, err
    with h5py.File("out.h5") as file:
        np.testing.assert_array_equal(file["wls"][()], [400, 500, 600, 700])
        np.testing.assert_array_equal(file["inputdims"][()], [2, 5, 1])
    frame.rename(columns={"AERFRAC_2": "foo"}).to_csv("t.csv", index=False)
    assert kfx(*words, *FEW[:-1], "hydra.run.dir=s")[0] == 0
    code, _, err = kfx("export", "isofit", "s", "--to", "other.h5")
    assert code != 0
    assert "input foo: is none of ISOFIT's" in err


@pytest.mark.slow
def test_isofit_gets_the_preparation_that_the_run_chose(kfx, in_folder):
    h5py = pytest.importorskip("h5py")
    rng, outputs = np.random.default_rng(0), np.linspace(0, 1, 4)
    x = np.concatenate([rng.uniform(size=(150, 2)), np.exp(3 * rng.standard_normal((150, 1)))], axis=1)  # heavy tails
    q = np.log(x[:, 2:]) / 3
    y = np.sin(2 * q * outputs) + x[:, 1:2] * outputs**2 + np.cos(2 * q + outputs)
    frame = pd.DataFrame(np.c_[x, y], columns=["a", "b", "c", "400", "500", "600", "700"])
    words = (
        "run",
        "dataset=table",
        "dataset.target=['400','500','600','700']",
        "outputs.reduce=pca",
        "kernel=emulator",
    )
    frame.to_csv("t.csv", index=False)
    assert kfx(*words, "dataset.path=t.csv", "dataset.transform=true", *FEW)[0] == 0
    assert "quantile" in load_run("r").metrics["preparation"][0]["preprocess"]
    code, _, err = kfx("export", "isofit", "r", "--to", "out.h5")
    assert code != 0
    assert "the file scales inputs and outputs alone; run it with dataset.preprocess=[normalize]" in err
    frame.loc[3, "b"] = frame.loc[7, "c"] = np.nan
    frame.to_csv("gaps.csv", index=False)
    given = ("dataset.path=gaps.csv", "dataset.missing=median", "dataset.preprocess=[normalize]", *FEW[:-1])
    assert kfx(*words, *given, "hydra.run.dir=s")[0] == 0
    assert kfx("export", "isofit", "s", "--to", "gaps.h5")[0] == 0
    with h5py.File("gaps.h5") as file:
        assert np.isfinite([file["xmin"][()], file["xmax"][()]]).all()
        expected = load_run("s").predict(frame[["a", "b", "c"]].dropna()).filter(like="prediction")
        found = predicted_by_isofit(file["MVM1"], frame[["a", "b", "c"]].dropna().to_numpy())
    np.testing.assert_allclose(found, expected, atol=1e-6)  # far points, of which ISOFIT rounds distances


def test_isofit_takes_no_other_kernel(kfx, in_folder):
    pytest.importorskip("h5py")
    as_file()
    assert kfx("run", "dataset=arrays", "dataset.path=spectra.npz", "outputs.reduce=pca", "kernel=rbf", *FEW)[0] == 0
    code, _, err = kfx("export", "isofit", "r", "--to", "out.h5")
    assert code != 0
    assert "its kernel is not the file's; run it with kernel=emulator" in err
    assert not Path("out.h5").exists()


# ---- outputs that are constant


def with_constants():
    """Points, and outputs of which the second, fourth and fifth are constant."""
    x = np.random.default_rng(0).random((40, 2))
    return x, np.c_[np.sin(5 * x[:, 0]), np.full(40, 2.0), x[:, 1], np.zeros(40), np.full(40, 0.1)]


@pytest.mark.parametrize("targets", ["standardized", "centered", "as_given"])
@pytest.mark.parametrize("outputs", [None, {"kernels": "separate"}, {"reduce": "pca"}, {"reduce": "cca"}])
def test_a_constant_output_among_others_is_predicted_and_changes_none(outputs, targets):
    x, y = with_constants()
    made = {"outputs": outputs, "targets": targets, "optimizer": "none"}
    model = KernelFlowRegressor(**made).fit(x[:30], y[:30])
    mean, deviation = model.predict(x[30:], return_std=True)
    np.testing.assert_array_equal(mean[:, [1, 3, 4]], np.tile([2.0, 0.0, 0.1], (10, 1)))
    assert (deviation[:, [1, 3, 4]] == 0).all()
    assert (deviation[:, [0, 2]] > 0).all()
    assert (model.sample_y(x[30:], 3)[:, 1] == 2).all()
    assert np.isfinite(model.scale_).all()
    alone = KernelFlowRegressor(**made).fit(x[:30], y[:30][:, [0, 2]])
    for found, expected in zip((mean, deviation), alone.predict(x[30:], return_std=True), strict=True):
        np.testing.assert_allclose(found[:, [0, 2]], expected, rtol=1e-6, atol=1e-9)
    with pytest.raises(kfx.DataError, match="every training target is 2"):
        KernelFlowRegressor(**{**made, "targets": "standardized"}).fit(x, y[:, [1, 1]])


def test_a_run_with_a_constant_output_has_finite_metrics_and_predicts_it(kfx, in_folder):
    x, y = with_constants()
    names = ["a", "b", "p", "q", "r"]
    pd.DataFrame(np.c_[x, y[:, :3]], columns=names).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=[p,q,r]", "optimizer=none", "hydra.run.dir=r"]
    code, _, err = kfx("run", *words, "outputs.reduce=pca", "outputs.components=1", "evaluation.batches=0")
    assert code == 0, err
    found = load_run("r").evaluation.set_index("metric")["value"]
    assert np.isfinite(found).all()
    assert "nlpd_of_vector" in found
    predicted = load_run("r").predict(pd.DataFrame(x, columns=names[:2]))
    assert (predicted["prediction.q"] == 2).all()
    assert (predicted["deviation.q"] == 0).all()


# ---- design


def test_a_design_is_the_order_of_largest_posterior_variances():
    x, y = spectra()
    model = KernelFlowRegressor(
        "rbf", scale=None, outputs={"kernels": "separate"}, optimizer={"name": "adam", "iterations": 5}
    )
    model.fit(x[:40], y[:40, [0, 5]])
    candidates = np.random.default_rng(1).uniform(size=(30, 3))
    found = kfx.design(model, candidates, 4)
    points, chosen = x[:40], []
    for _ in range(4):
        total = np.zeros(len(candidates))
        for part in model.components_:
            kernel, shift = part.kernel_, part._predictor.interpolant.effective
            gram = kernel.gram(points) + shift * np.eye(len(points))
            cross = kernel.gram(candidates, points)
            variance = kernel.diagonal(candidates) - np.einsum("ij,ij->i", cross @ np.linalg.inv(gram), cross)
            total += part.scale_[0] * variance
        total[chosen] = -1
        chosen.append(int(total.argmax()))
        points = np.concatenate([points, candidates[chosen[-1:]]])
    assert found.tolist() == chosen
    part = model._predictor.parts[0]
    variance, column = part.variance_and_columns(candidates)
    whole = part.covariance(candidates)
    np.testing.assert_allclose(variance, whole.diagonal(), atol=1e-12)
    np.testing.assert_allclose(column(7), whole[7], atol=1e-12)


def test_the_scale_of_separate_kernels_is_in_the_units_of_the_outputs():
    x, y = spectra()
    model = KernelFlowRegressor("rbf", outputs={"kernels": "separate"}, optimizer={"name": "adam", "iterations": 2})
    scales = [model.fit(x[:40], unit * y[:40, [0, 5]]).scale_ for unit in (1.0, 10.0)]
    np.testing.assert_allclose(scales[1], 100 * scales[0], rtol=1e-6)


def test_sensitivities_are_those_of_the_function():
    ranges = SIMULATORS["ishigami"].ranges
    data = simulate(400, 1, "ishigami", Streams(0)["data"])
    model = KernelFlowRegressor("rbf", optimizer={"name": "adam", "iterations": 60}).fit(
        data.x_train, data.y_train[:, 0]
    )
    first, total = kfx.sensitivities(model, list(ranges.values()))
    np.testing.assert_allclose(first, [[0.3139, 0.4424, 0.0]], atol=0.03)  # Ishigami & Homma 1990
    np.testing.assert_allclose(total, [[0.5576, 0.4424, 0.2437]], atol=0.03)


def ranged_by(names):
    """Ranges of the features a and b in several forms, as mappings of these names; they differ in place and width."""
    given = {name: {"a": (0.0, 4.0), "b": (10.0, 11.0)}[name] for name in names}
    return [given, pd.Series(given), pd.DataFrame(given)]


def test_ranges_by_name_belong_to_the_features_of_those_names():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.uniform(size=40), "b": rng.uniform(10, 11, 40)})
    model = KernelFlowRegressor("linear", optimizer="none", targets="centered").fit(frame, frame["a"] + 2 * frame["b"])
    expected = kfx.sensitivities(model, [(0, 4), (10, 11)], 256)
    np.testing.assert_allclose(expected[0], [[0.8, 0.2]], atol=0.02)
    for ranges in (*ranged_by("ba"), *ranged_by("ab")):
        np.testing.assert_array_equal(kfx.sensitivities(model, ranges, 256), expected)
    unnamed = KernelFlowRegressor("linear", optimizer="none").fit(frame.to_numpy(), frame["a"])
    for one, ranges, said in (
        (model, {"a": (0, 1)}, "ranges: b has no range; expected"),
        (model, {"a": (0, 1), "b": (10, 11), "c": (0, 1)}, "ranges: c is no feature; expected"),
        (model, {"a": (0, 1), "b": (11, 10)}, "ranges: feature b has"),
        (model, [(0, 1)] * 3, "ranges: holds 3 ranges; expected"),
        (unnamed, {"a": (0, 1), "b": (10, 11)}, "ranges: the emulator has no names"),
    ):
        with pytest.raises(ConfigError, match=re.escape(said)):
            kfx.sensitivities(one, ranges)


# ---- simulators


def test_simulators_are_those_of_their_papers():
    rw, r, tu, hu, tl, hl, length, kw = borehole = [0.1, 1000, 90000, 1000, 80, 750, 1400, 10000]
    resistance = math.log(r / rw) / (2 * math.pi * tu) * (1 + tu / tl) + length / (math.pi * rw**2 * kw)
    wing = [174, 252, 7.52, 0, 34, 0.672, 0.12, 3.8, 2000, 0.064]  # without sweep its cosine is 1
    powers = np.array([0.758, 0.0035, 0.6, 0.006, 0.04, -0.3, 0.49])
    values = {
        "borehole": (borehole, (hu - hl) / resistance),
        "wing_weight": (
            wing,
            math.exp(math.log(0.036) + powers @ np.log([*wing[:3], *wing[4:6], 12, 3.8 * 2000])) + 11.136,
        ),
        "ishigami": ([1.0, 2.0, 3.0], np.sin(1) + 7 * np.sin(2) ** 2 + 8.1 * np.sin(1)),
    }
    for name, (x, expected) in values.items():
        found = SIMULATORS[name].compute(tuple(np.array([each], dtype=float) for each in x))
        assert found[0] == pytest.approx(expected, rel=1e-4), name


@pytest.mark.parametrize("function", [name for name in SIMULATORS if name != "prosail"])
def test_simulated_inputs_fill_their_ranges(function):
    data = simulate(200, 50, function, Streams(0)["data"])
    for i, (low, high) in enumerate(SIMULATORS[function].ranges.values()):
        column = data.x_train[:, i]
        counts = np.histogram(column, 20, (low, high))[0]
        assert counts.min() >= 9, "a Latin hypercube has ten in each twentieth"
    assert np.isfinite(data.y_train).all()
    assert data.features == tuple(SIMULATORS[function].ranges)


def test_a_spectrum_needs_its_package_or_has_2101_values():
    try:
        import prosail  # noqa: F401
    except ImportError:
        with pytest.raises(Exception, match=r"pip install 'kernel-flows\[prosail\]'"):
            simulate(2, 1, "prosail", Streams(0)["data"])
        return
    data = simulate(3, 1, "prosail", Streams(0)["data"])
    assert data.y_train.shape == (3, 2101)
    assert (data.y_train > 0).all()
    assert RBF(1.0).gram(data.x_train).shape == (3, 3)


@pytest.fixture
def compare_emulators(monkeypatch):
    root = Path(__file__).parent.parent
    monkeypatch.syspath_prepend(str(root / "scripts"))
    spec = importlib.util.spec_from_file_location("compare_emulators", root / "scripts/compare_emulators.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_methods_are_compared_on_the_seeds_that_both_have(compare_emulators, monkeypatch):
    columns = ["case", "n", "seed", "method", "rmse", "fit"]
    rows = [["piston", 9, 0, "a", 3.0, 1.0], ["piston", 9, 1, "a", 70.0, 9.0], ["piston", 9, 0, "b", 2.0, 4.0]]
    monkeypatch.setattr(compare_emulators, "table", lambda: pd.DataFrame(rows, columns=columns))
    assert compare_emulators.ratios("a", "b").loc[("piston", 9)].tolist() == [1.5, 0.25]


def test_the_page_is_what_the_rows_give(compare_emulators):
    notes = Path(__file__).parent.parent / "docs/emulators_notes.md"
    assert_same_page(notes.read_text(), compare_emulators.page())
