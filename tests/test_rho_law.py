"""The law of ρ for draws of the kernel's own Gaussian process, and where a run shows it."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from kfx import load_run
from kfx.kernels import RBF, Linear, Matern
from kfx.numerics.regularization import Regularization
from kfx.numerics.rho_law import effective_outputs, mean_and_deviation, rho_law
from kfx.objectives import nll, rho
from kfx.plots.trace import objective_over_iterations
from kfx.record.findings import reading_of_rho
from kfx.report.run_page import page, view

LAMBDA = Regularization(1e-2, "centered")


def drawn(matrix, rng, columns=1):
    """Draws of N(0, matrix), (n, columns)."""
    return np.linalg.cholesky(matrix) @ rng.standard_normal((len(matrix), columns))


def with_nugget(gram, regularization=LAMBDA):
    return gram + regularization.of(gram) * np.eye(len(gram))


@pytest.mark.parametrize(
    ("kernel", "size", "kept", "outputs", "value"),
    [
        (RBF(0.3), 40, 20, 1, 1e-4),
        (RBF(1e-3), 40, 10, 1, 1e-2),
        (Matern(0.5, nu=0.5), 30, 25, 1, 1e-8),
        (Matern(2.0, nu=2.5), 24, 12, 3, 1e-1),
        (Linear(), 20, 5, 2, 10.0),
    ],
)
def test_rho_of_draws_has_the_law_whatever_the_kernel(kernel, size, kept, outputs, value):
    rng, own = np.random.default_rng(1), Regularization(value, "mean_diagonal")
    gram = kernel.gram(rng.uniform(size=(size, 2)))
    y = drawn(with_nugget(gram, own), rng, 1000 * outputs).reshape(size, 1000, outputs)
    found = [rho(gram, 7.0 * y[:, i], kept, own, False)[0] for i in range(1000)]
    law, p = rho_law(size, kept, outputs), kept / size
    assert mean_and_deviation(size, kept, outputs) == pytest.approx((law.mean(), law.std()), rel=1e-12)
    assert kstest(found, law.cdf).pvalue > 0.01
    assert kstest(found, rho_law(size, kept, 2 * outputs).cdf).pvalue < 1e-6
    assert law.mean() == pytest.approx(1 - p)
    assert law.var() == pytest.approx(p * (1 - p) / (outputs * size / 2 + 1))


@pytest.mark.parametrize("value", [1e-3, pytest.param(1.0, marks=pytest.mark.slow)])
def test_the_law_holds_for_batches_though_each_has_its_own_lambda(value):
    rng, own, found, ratios, means = np.random.default_rng(2), Regularization(value, "centered"), [], [], []
    for _ in range(300):
        gram = RBF(3.0).gram(rng.standard_normal((150, 2)))
        y = drawn(with_nugget(gram, own), rng)
        batches = [rng.choice(150, 40, replace=False) for _ in range(5)]
        values = [rho(gram[np.ix_(b, b)], y[b], 20, own, False)[0] for b in batches]
        ratios += [own.of(gram[np.ix_(b, b)]) / own.of(gram) for b in batches]
        found.append(values[0])
        means.append(np.mean(values))
    assert np.std(ratios) > 0.1
    law = rho_law(40, 20)
    assert kstest(found, law.cdf).pvalue > 0.01
    assert law.std() / np.sqrt(5) < np.std(means) < law.std(), "between independent batches and the same batch"


def test_outputs_that_are_correlated_or_of_unequal_scale_count_less():
    rng = np.random.default_rng(3)
    y = torch.as_tensor(np.linalg.qr(rng.standard_normal((50, 4)))[0])
    assert effective_outputs(y) == pytest.approx(4)
    assert [effective_outputs(scale * y) for scale in (1e200, 1e-200)] == pytest.approx([4, 4])
    assert effective_outputs(y[:, :1].expand(-1, 4)) == pytest.approx(1)
    assert effective_outputs(y * torch.tensor([1.0, 1e-6, 1e-6, 1e-6])) == pytest.approx(1)
    gram, mixing = RBF(0.1).gram(rng.uniform(size=(30, 1))), np.array([[1.0, 0.9, 0.8], [0.0, 0.3, 0.0]])
    mixed = drawn(with_nugget(gram), rng, 2000).reshape(30, 1000, 2) @ mixing
    found = [rho(gram, mixed[:, i], 15, LAMBDA, False)[0] for i in range(1000)]
    count = effective_outputs(torch.as_tensor(mixed.reshape(-1, 3)))
    assert np.std(found) == pytest.approx(rho_law(30, 15, count).std(), rel=0.1)
    assert np.std(found) > 1.3 * rho_law(30, 15, 3).std()


def test_sizes_that_cannot_be_are_refused():
    for sizes in ((10, 0), (10, 10), (10, 5, 0)):
        with pytest.raises(ValueError, match="expected 1 <= sample_size < batch_size and outputs > 0"):
            rho_law(*sizes)


@pytest.mark.slow
def test_rho_of_few_parameters_is_that_of_new_points_and_of_many_is_not():
    """Lengths for each feature are trained on 100 targets; ρ of these and of 100 new points of the same draw."""

    def difference(features, seed):
        rng = np.random.default_rng(seed)
        x, loss = rng.uniform(size=(200, features)), nll.with_settings(form="held_out")
        lengths = np.full(features, 0.4 * np.sqrt(features))
        y = drawn(with_nugget(RBF(1.0).gram(x / lengths)), rng)
        steps = np.zeros((2, features))
        for i in range(1, 151):  # Adam
            batch = rng.choice(100, 60, replace=False)
            z = x[batch] / lengths
            gram = RBF(1.0).gram(z)
            pull = loss(gram, y[batch], 30, LAMBDA)[1] * gram
            gradient = 2 * (pull.sum(axis=1) @ z**2 - (z * (pull @ z)).sum(axis=0))
            steps += np.array([[0.1], [0.001]]) * (np.stack([gradient, gradient**2]) - steps)
            lengths *= np.exp(-0.05 * steps[0] / (1 - 0.9**i) / (np.sqrt(steps[1] / (1 - 0.999**i)) + 1e-9))
        parts = [[first + rng.choice(100, 60, replace=False) for _ in range(10)] for first in (0, 100)]
        seen, new = (
            np.mean([rho(RBF(1.0).gram(x[b] / lengths), y[b], 30, LAMBDA, False)[0] for b in part]) for part in parts
        )
        return (seen - new) / rho_law(60, 30).std()

    few, many = (np.mean([difference(features, seed) for seed in range(6)]) for features in (10, 50))
    assert abs(few) < 0.7
    assert many < -1


WORDS = ("sampler.batch_size=40", "optimizer.iterations=3", "hydra.run.dir=r", "figures=false")
WORDS += ("dataset.n_train=80", "dataset.n_test=20", "objective=rho")
SAMPLE = ("dataset=gp_sample", "dataset.width=6")


@pytest.mark.parametrize(
    ("of_targets", "of_kernel", "words"),
    [
        pytest.param(0.5, 0.5, "as", marks=pytest.mark.slow),
        (2.5, 0.5, "smoother than"),
        pytest.param(0.5, 2.5, "rougher or noisier than", marks=pytest.mark.slow),
    ],
)
def test_a_run_says_where_rho_lies(kfx, in_folder, of_targets, of_kernel, words):
    """ν of the Matérn kernels that the targets are drawn from, and that the run has."""
    kernels = (
        "dataset.kernel.name=matern",
        f"+dataset.kernel.nu={of_targets}",
        "kernel=matern",
        f"kernel.nu={of_kernel}",
    )
    code, out, _ = kfx("run", *WORDS, *SAMPLE, *kernels, "optimizer=none", "regularization.value=1e-9")
    assert code == 0
    run = load_run("r")
    law, mean = run.metrics["rho_law"], run.metrics["held_out"]["rho"]["trained"]["mean"]
    assert law["mean"] == 0.5
    assert law["sd"] == pytest.approx(np.sqrt(0.25 / 21))
    assert law["deviations"]["trained"] == pytest.approx((mean - 0.5) / law["sd"])
    shown = f"a draw of this kernel: 0.50 ± 0.11: {words} its draws"
    assert f"{'':<12}{shown}" in out.splitlines()
    assert shown in run._repr_html_()
    assert f"rho of {shown}" in page([in_folder / "r"])


def test_an_old_record_without_the_law_shows_the_rest(kfx, in_folder):
    assert kfx("run", *WORDS, *SAMPLE)[0] == 0
    new = load_run("r")
    path = in_folder / "r/metrics.json"
    content = json.loads(path.read_text())
    del content["rho_law"]
    path.write_text(json.dumps(content))
    old = load_run("r")
    assert reading_of_rho(new.metrics)
    assert reading_of_rho(old.metrics) == ""
    assert old.summary() == [line for line in new.summary() if "a draw of this kernel" not in line]
    assert [table.rows for table in view(old).measured] == [table.rows for table in view(new).measured]
    assert [bands(run) for run in (new, old)] == [1, 0]


@pytest.mark.parametrize(("values", "is_seen"), [([0.4, 0.9], True), ([0.010, 0.012], False)])
def test_the_band_is_in_view_where_the_axis_can_hold_it(kfx, in_folder, values, is_seen):
    assert kfx("run", *WORDS, *SAMPLE, "objective=nll", "optimizer.iterations=2")[0] == 0
    run = load_run("r")
    run.trace["rho"] = values
    axes = objective_over_iterations(run).axes
    (band,) = (patch for patch in axes[1].patches if patch.get_label().startswith("a draw of this kernel"))
    law = run.metrics["rho_law"]
    assert band.get_y() == pytest.approx(law["mean"] - 2 * law["sd"])
    assert band.get_height() == pytest.approx(4 * law["sd"])
    low, high = axes[1].get_ylim()
    assert low < values[0] < values[1] < high
    assert (low < band.get_y() < band.get_y() + band.get_height() < high) == is_seen
    assert not axes[0].patches


def test_the_picture_has_no_band_where_samples_change_in_size(kfx, in_folder):
    assert kfx("run", *WORDS, *SAMPLE, "sampler=linear")[0] == 0
    run = load_run("r")
    assert "rho_law" in run.metrics
    assert bands(run) == 0


def bands(run):
    _, labels = objective_over_iterations(run).axes[-1].get_legend_handles_labels()
    return sum(label.startswith("a draw of this kernel: ") for label in labels)


@pytest.mark.parametrize(
    "words",
    [
        (*SAMPLE, "optimizer=flow_euler"),
        (*SAMPLE, "objective.solver=inverse"),
        (*SAMPLE, "dataset.dimensions=9", "kernel.ard=true"),
        ("dataset=digits", "sampler.choice=stratified"),
    ],
    ids=["flow", "inverse", "parameters", "stratified"],
)
def test_rho_is_not_read_where_its_law_does_not_hold(kfx, in_folder, words):
    assert kfx("run", *WORDS, *words)[0] == 0
    run = load_run("r")
    assert "held_out" in run.metrics
    assert "rho_law" not in run.metrics
    assert not any("a draw of this kernel" in line for line in run.summary())
    assert bands(run) == 0


def test_rho_is_read_with_ten_targets_for_each_parameter(kfx, in_folder):
    assert kfx("run", *WORDS, *SAMPLE, "dataset.dimensions=8", "kernel.ard=true")[0] == 0
    assert load_run("r").metrics["rho_law"]["mean"] == 0.5


@pytest.mark.parametrize(
    ("value", "sign"), [(1e-6, 1), pytest.param(0.1, -1, marks=pytest.mark.slow)], ids=["shorter", "longer"]
)
def test_the_mean_slope_of_rho_over_draws_is_that_of_determinants_and_not_zero(value, sign):
    """E dρ = (d log det A_c − p d log det A) / (N_f + 2) at the kernel of the draws, as w is white: ρ falls towards
    shorter lengths with little noise and towards longer ones with much."""
    rng, own, size, kept = np.random.default_rng(4), Regularization(value, "absolute"), 30, 15
    x = rng.uniform(size=(size, 1))

    def matrix(length):
        return with_nugget(Matern(length, nu=0.5).gram(x), own)

    def of_determinants(length):
        a = matrix(length)
        whole, part = (np.linalg.slogdet(each)[1] for each in (a, a[:kept, :kept]))
        return (part - kept / size * whole) / (size + 2)

    longer, shorter = 0.5 * np.exp([1e-4, -1e-4])
    expected = (of_determinants(longer) - of_determinants(shorter)) / 2e-4
    change, gram = (matrix(longer) - matrix(shorter)) / 2e-4, Matern(0.5, nu=0.5).gram(x)
    y = drawn(matrix(0.5), rng, 4000)
    slopes = np.array([(rho(gram, each, kept, own)[1] * change).sum() for each in y.T])
    error = slopes.std() / np.sqrt(len(slopes))
    assert slopes.mean() == pytest.approx(expected, abs=3 * error)
    assert sign * expected > 10 * error
