"""Nyström regression: pivots, sums over one pass, cross-validation and variances, each against a direct computation."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from kfx.config.choices import BACKTESTED
from kfx.estimators import KernelFlowClassifier, KernelFlowRegressor
from kfx.estimators.recorded import Model
from kfx.evaluation.centres import chosen_centres
from kfx.evaluation.disk_stores import DiskStores
from kfx.evaluation.interpolants import Computed
from kfx.evaluation.nystrom import Approximation, passed, solved
from kfx.experiment.compose import composed, load, without_hydra
from kfx.experiment.config import check
from kfx.kernels import CNNGP, RBF, Conv2d, Matern, ReLU, Sequential
from kfx.numerics.conjugate_gradients import LowRank, conjugate_gradients, solve
from kfx.numerics.nystrom import Centres, Nystrom, Spectrum, Sums
from kfx.numerics.pivoted_cholesky import randomly_pivoted
from kfx.numerics.regularization import Regularization
from kfx.outcomes import ConfigError, StoreError
from kfx.record.reading import load_run
from kfx.store.sums_store import SumsStore, SumsWork
from kfx.store.work import in_this_process
from tests.slow import slow


def points_of(n, width=3, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, width)))


def clusters(n=600, seed=0):
    """Many points in a small cluster, and few far apart."""
    rng = np.random.default_rng(seed)
    near, far = 0.01 * rng.normal(size=(n - 40, 3)), 3 * rng.normal(size=(40, 3))
    return torch.from_numpy(rng.permutation(np.concatenate([near, far])))


def pivoted(kernel, x, count, seed=0, block=32):
    def columns(at):
        return kernel.gram(x, x[torch.from_numpy(at)])

    def among(at):
        return kernel.gram(x[torch.from_numpy(at)])

    return randomly_pivoted(columns, among, kernel.diagonal(x), count, np.random.default_rng(seed), block)


# ---- randomly pivoted Cholesky


@pytest.mark.parametrize("block", [1, 7, 64])
def test_the_root_is_that_of_the_nystrom_approximation(block):
    kernel, x = Matern(1.0), points_of(120)
    pivots, root = pivoted(kernel, x, 40, block=block)
    gram, at = kernel.gram(x), torch.from_numpy(pivots)
    expected = gram[:, at] @ torch.linalg.solve(gram[at][:, at], gram[at])
    assert len(set(pivots)) == len(pivots) == 40
    assert torch.allclose(root @ root.mT, expected, atol=1e-9)


def test_pivots_end_where_the_kernel_is_exact():
    x = points_of(5).repeat(20, 1)
    pivots, root = pivoted(RBF(1.0), x, 30)
    assert len(pivots) == 5
    assert torch.allclose(root @ root.mT, RBF(1.0).gram(x), atol=1e-10)


@pytest.mark.slow
def test_blocks_draw_pivots_with_the_probabilities_of_single_draws():
    """The second pivot's distribution, over many seeds."""
    x, kernel = points_of(6, width=1), RBF(1.0)
    counts = np.zeros((2, 6))
    for row, block in enumerate((1, 8)):
        for seed in range(3000):
            pivots, _ = pivoted(kernel, x, 2, seed, block)
            counts[row, pivots] += 1
    share = counts / counts.sum(axis=1, keepdims=True)
    assert np.abs(share[0] - share[1]).max() < 0.02  # three deviations of a share near 1/6


def test_pivots_leave_less_than_points_drawn_at_random():
    kernel, x = RBF(1.0), clusters()
    _, root = pivoted(kernel, x, 30)
    uniform = Centres.of(kernel, x[:30]).features(x)
    missed, of_uniform = (
        float((1 - each).clamp(min=0).sum()) for each in (root.square().sum(1), uniform.square().sum(0))
    )
    assert missed < 0.5 * of_uniform


def test_pivoted_columns_make_a_better_preconditioner_than_evenly_spaced_ones():
    kernel, x, y = RBF(1.0), clusters(), points_of(600, 1, seed=1)
    theta = kernel.gram(x)
    even = torch.linspace(0, 599, 150).long()
    factor = torch.linalg.cholesky(theta[even][:, even] + 1e-8 * torch.eye(150))
    root = torch.linalg.solve_triangular(factor, theta[even], upper=False).mT
    before = conjugate_gradients(theta.__matmul__, y, 1e-4, LowRank(root, theta.diagonal(), 1e-4), 1e-8, 1000)
    now = solve(theta.__matmul__, lambda i, j: theta[i][:, j], None, theta.diagonal(), y, 1e-4, 1e-8, 10**9)
    assert now.iterations < before.iterations
    assert torch.allclose(
        now.alpha, torch.linalg.solve(theta + 1e-4 * torch.eye(600).double(), y), rtol=1e-4, atol=1e-4
    )


# ---- the regression


def sums_of(centres, x, y, folds=5):
    found = []
    for fold in range(folds):
        own = x[fold::folds]
        empty = Sums.zero(len(centres.points), y.shape[1])
        found.append(empty.with_points(centres.features(own), y[fold::folds], centres.kernel.diagonal(own)))
    return found


def of_folds(folds):
    sums = sum(folds[1:], folds[0])
    return Nystrom([partial(copy, fold) for fold in folds], sums, Spectrum.of(sums))


def regression(n=200, m=25, outputs=2):
    kernel, x = Matern(2.0), points_of(n)
    y = torch.stack([torch.sin(x[:, 0]), x[:, 1]], dim=1)[:, :outputs] + 0.1 * points_of(n, outputs, seed=3)
    centres = Centres.of(kernel, x[:m])
    folds = sums_of(centres, x, y)
    return centres, x, y, of_folds(folds)


def direct(centres, x, y, regularization):
    phi = centres.features(x)
    return torch.linalg.solve(phi @ phi.mT + regularization * torch.eye(len(phi)).double(), phi @ y)


@pytest.mark.parametrize("regularization", [1e-6, 1e-2, 10.0])
def test_weights_solve_the_normal_equations(regularization):
    centres, x, y, nystrom = regression()
    expected = direct(centres, x, y, regularization)
    assert torch.allclose(nystrom.weights(regularization), expected, rtol=1e-6, atol=1e-8)
    alpha = centres.coefficients(expected)
    assert torch.allclose(centres.cross(x) @ alpha, centres.features(x).mT @ expected, atol=1e-8)


def test_errors_of_folds_are_those_of_fits_without_them():
    centres, x, y, nystrom = regression()
    candidates = [Regularization(value, "absolute") for value in (1e-4, 1e-2, 1.0)]
    for candidate, error in zip(candidates, nystrom.errors(candidates), strict=True):
        expected = 0.0
        for fold in range(5):
            held = np.arange(fold, len(x), 5)
            rest = np.setdiff1d(np.arange(len(x)), held)
            w = direct(centres, x[rest], y[rest], candidate.value)
            expected += float((y[held] - centres.features(x[held]).mT @ w).square().sum())
        assert error == pytest.approx(expected, rel=1e-6)


def test_directions_without_data_have_no_weight():
    """200 centres in a plane: a smooth kernel has far fewer directions that are not round-off."""
    kernel, x, test = RBF(2.0), points_of(4000, 2), points_of(500, 2, seed=1)
    own = Centres.of(kernel, x[:200])
    nystrom = of_folds(sums_of(own, x, torch.sin(x.sum(dim=1, keepdim=True))))
    for regularization in (0.0, 1e-14, 1e-12):
        prediction = own.features(test).mT @ nystrom.weights(regularization)
        assert float((prediction[:, 0] - torch.sin(test.sum(dim=1))).square().mean()) < 1e-3


def test_folds_that_are_not_alike_are_solved_as_well():
    """As many centres as points: a fold holds directions that the others lack."""
    centres, x, y, nystrom = regression(n=50, m=50)
    expected = 0.0
    for fold in range(5):
        held = np.arange(fold, 50, 5)
        rest = np.setdiff1d(np.arange(50), held)
        prediction = centres.features(x[held]).mT @ direct(centres, x[rest], y[rest], 1e-3)
        expected += float((y[held] - prediction).square().sum())
    assert nystrom.errors([Regularization(1e-3, "absolute")])[0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("regularization", [1e-6, 1e-2, 1.0])
def test_points_left_out_are_predicted_as_by_fits_without_them(regularization):
    centres, x, y, nystrom = regression(n=60, m=20)
    phi, prior = centres.features(x), centres.kernel.diagonal(x)
    errors, variance = nystrom.one_left_out(phi, y, prior, regularization)
    for i in (0, 7, 45):  # the first is a centre
        rest = np.setdiff1d(np.arange(60), [i])
        own, others = phi[:, i], phi[:, rest]
        b = others @ others.mT + regularization * torch.eye(20).double()
        assert torch.allclose(errors[i], y[i] - own @ torch.linalg.solve(b, others @ y[rest]), rtol=1e-6)
        expected = prior[i] - own @ own + regularization * (1 + own @ torch.linalg.solve(b, own))
        assert float(variance[i]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("kernel", ["matern", slow("laplace"), "rbf", slow("rational_quadratic")])
def test_centres_at_all_points_are_the_exact_regression(kernel, noise):
    """Predictions and deviations, at every λ, or a remark says why not."""
    rng = np.random.default_rng(0)
    x, new = rng.uniform(-2, 2, (120, 2)), rng.uniform(-2, 2, (40, 2))
    y = np.sin(2 * x[:, 0]) * x[:, 1] + noise * rng.normal(size=120)
    agree = []
    for value in BACKTESTED[::2]:
        settings = {"optimizer": "none", "regularization": value}
        exact = KernelFlowRegressor(kernel, **settings).fit(x, y)
        own = KernelFlowRegressor(kernel, solver="nystrom", centres=120, **settings).fit(x, y)
        (mean, deviation), found = (model.predict(new, return_std=True) for model in (exact, own))
        agree.append(
            np.abs(found[0] - mean).max() < 0.1 * deviation.min() and np.abs(found[1] / deviation - 1).max() < 0.01
        )
        assert agree[-1] or any("lost to round-off" in remark for remark in own.remarks_), value
    assert sum(agree) >= len(agree) - 1


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_deviations_through_centres_cover_at_every_lambda(noise):
    """Also where centres are nearly as many as points, and where λ is small."""
    rng = np.random.default_rng(0)
    x, new = rng.uniform(-2, 2, (120, 2)), rng.uniform(-2, 2, (200, 2))
    truth, others = (np.sin(2 * each[:, 0]) * each[:, 1] + noise * rng.normal(size=len(each)) for each in (x, new))
    for centres in (30, 80, 105, 115):
        for value in (1e-10, 1e-3):
            model = KernelFlowRegressor("matern", optimizer="none", regularization=value, centres=centres)
            mean, deviation = model.fit(x, truth).predict(new, return_std=True)
            assert np.mean(np.abs(mean - others) < 1.96 * deviation) > 0.75
            assert deviation.mean() < 10 * np.sqrt(np.mean((mean - others) ** 2))


def test_the_unit_of_regularization_is_that_of_the_approximate_gram_matrix():
    centres, x, _, nystrom = regression()
    phi = centres.features(x)
    gram = phi.mT @ phi
    gram.diagonal().copy_(centres.kernel.diagonal(x))
    n, own = len(x), nystrom.sums.effective(Regularization(2.0, "centered"))
    approximate = float(gram.diagonal().sum()) / n - float((phi.mT @ phi).sum()) / n**2
    assert own == pytest.approx(2 * approximate)


def test_the_unexplained_share_is_that_of_the_diagonal():
    centres, x, _, nystrom = regression()
    diagonal, phi = centres.kernel.diagonal(x), centres.features(x)
    share = float((diagonal - phi.square().sum(dim=0)).sum() / diagonal.sum())
    assert 0.01 < share < 0.99
    assert nystrom.sums.unexplained() == pytest.approx(share)


def test_all_points_as_centres_give_exact_regression(tmp_path):
    kernel, x, y = Matern(1.5), points_of(80), points_of(80, 1, seed=2)
    how, test = Approximation(80, "uniform"), points_of(20, seed=5)
    disk = DiskStores(tmp_path, 10**9, lambda work, label: in_this_process(work, lambda task: None))
    with passed(kernel, x, y, how, disk) as found:
        own = solved(found, Regularization(1e-2, "absolute"))
    assert found.nystrom.sums.unexplained() == pytest.approx(0, abs=1e-9)
    matrix = kernel.gram(x) + 1e-2 * torch.eye(80).double()
    cross = kernel.gram(test, own.points)
    assert torch.allclose(cross @ own.alpha, kernel.gram(test, x) @ torch.linalg.solve(matrix, y), atol=1e-7)
    explained = kernel.gram(test, x) @ torch.linalg.solve(matrix, kernel.gram(x, test))
    expected = kernel.diagonal(test) - explained.diagonal()
    assert torch.allclose(own.variance(Computed(kernel, test, own.points)), expected, atol=1e-7)


def test_the_scale_gives_left_out_errors_the_predicted_variance(tmp_path):
    kernel, x = Matern(2.0), points_of(400)
    y = 7 * (torch.sin(x[:, :1]) + 0.2 * points_of(400, 1, seed=3))
    disk = DiskStores(tmp_path, 10**9, lambda work, label: in_this_process(work, lambda task: None))
    with passed(kernel, x, y, Approximation(60), disk) as found:
        own = solved(found, Regularization(3e-2, "absolute"))
    test = points_of(2000, seed=9)
    truth = 7 * (torch.sin(test[:, :1]) + 0.2 * points_of(2000, 1, seed=10))
    cross = kernel.gram(test, own.points)
    z = (truth - cross @ own.alpha) / own.deviation(Computed(kernel, test, own.points))
    assert 0.8 < float(z.square().mean()) < 1.25


@pytest.mark.parametrize(("choose", "folds"), [("flow", [0]), ("uniform", [0, 1, 2, 3, 4])])
def test_points_that_moved_centres_do_not_choose_regularization(tmp_path, monkeypatch, choose, folds):
    seen = []
    monkeypatch.setattr("kfx.evaluation.nystrom.chosen_centres", lambda kernel, x, *rest: seen.append(x) or x[:9])
    kernel, x, y = Matern(1.0), points_of(103), points_of(103, 1, seed=2)
    disk = DiskStores(tmp_path, 10**9, lambda work, label: in_this_process(work, lambda task: None))
    with passed(kernel, x, y, Approximation(9, choose), disk) as found:
        own, sums = solved(found, Regularization(1e-2)), [found.store.fold(fold, 5, 9) for fold in folds]
        first = torch.cat([found.store.rows(tile)[0] for tile in found.store.tiles(0)])
    assert len(own.predictions) == sum(each.n for each in sums)
    expected = 103 - len(first) if choose == "flow" else 103
    assert len(seen[0]) == expected
    assert (torch.cdist(first, seen[0]).min() > 0) == (choose == "flow")
    parts = [partial(sums.__getitem__, i) for i in range(len(sums))]
    asked = Nystrom(parts, found.nystrom.sums, found.nystrom.spectrum)
    candidates = [Regularization(1e-4), Regularization(1.0)]
    assert asked.errors(candidates) == pytest.approx(found.nystrom.errors(candidates))


# ---- centres


@pytest.mark.parametrize("how", ["uniform", "rpcholesky", "kmeans", "flow"])
def test_centres_have_the_shape_of_points(how):
    kernel = CNNGP(Sequential(Conv2d(3, padding="same"), ReLU(), Conv2d(4)), 1.3, 0.2)
    x = torch.from_numpy(np.random.default_rng(0).random((60, 1, 4, 4)))
    y = torch.eye(2, dtype=torch.float64)[torch.arange(60) % 2]
    found = chosen_centres(kernel, x, y, 10, how, Regularization(1e-2), np.random.default_rng(0))
    assert found.shape == (10, 1, 4, 4)
    assert found.dtype == x.dtype


@pytest.mark.slow
def test_centres_that_flow_predict_better():
    kernel, x = RBF(1.0), points_of(500, 2)
    y = torch.sin(2 * x[:, :1]) * x[:, 1:]
    errors = {}
    for how in ("rpcholesky", "flow"):
        own = Centres.of(kernel, chosen_centres(kernel, x, y, 12, how, Regularization(1e-4), np.random.default_rng(0)))
        folds = sums_of(own, x, y)
        errors[how] = of_folds(folds).errors([Regularization(1e-6)])[0]
    assert errors["flow"] < 0.7 * errors["rpcholesky"]


@pytest.mark.slow
def test_a_flow_that_predicts_worse_leaves_the_centres_where_they_were(monkeypatch):
    monkeypatch.setattr("kfx.evaluation.centres._RATE", 1e3)
    kernel, x = RBF(1.0), points_of(500, 2)
    y = torch.sin(2 * x[:, :1]) * x[:, 1:]
    start, found = (
        chosen_centres(kernel, x, y, 12, how, Regularization(1e-4), np.random.default_rng(0))
        for how in ("rpcholesky", "flow")
    )
    assert torch.equal(found, start)


# ---- the pass


def begun(tmp_path, n=103):
    x, y = points_of(n), points_of(n, 2, seed=1)
    store = SumsStore.prepare(tmp_path / "s", x, y, 5, 9, lambda: x[:12])
    return store, SumsWork(str(tmp_path / "s"), Centres.of(RBF(1.0), store.centres()))


def all_sums(store):
    return [store.sums(lane, 12)[0] for lane in range(store.lanes)]


def test_a_pass_that_is_killed_after_any_tile_goes_on(tmp_path):
    store, work = begun(tmp_path / "whole")
    in_this_process(work, lambda task: None)
    expected = all_sums(store)
    assert sum(each.n for each in expected) == 103
    for after in range(work.total()):
        cut, own = begun(tmp_path / str(after))
        for task in own.tasks()[:after]:
            own.do(task)
        again = SumsWork(own.folder, own.centres)  # another process
        assert len(again.tasks()) == work.total() - after
        in_this_process(again, lambda task: None)
        for mine, theirs in zip(all_sums(cut), expected, strict=True):
            assert torch.equal(mine.outer, theirs.outer)
            assert torch.equal(mine.products, theirs.products)


@pytest.mark.parametrize("damage", [b"", b"no archive", None])
def test_a_damaged_lane_is_summed_again(tmp_path, damage):
    store, work = begun(tmp_path)
    in_this_process(work, lambda task: None)
    expected, path = all_sums(store), tmp_path / "s" / "sums" / "2.npz"
    path.write_bytes(path.read_bytes()[:-200] if damage is None else damage)
    assert {task.row for task in work.tasks()} == {2}
    in_this_process(work, lambda task: None)
    assert torch.equal(all_sums(store)[2].outer, expected[2].outer)


@pytest.mark.parametrize("damage", [b"no archive", None])
def test_a_lane_that_becomes_unreadable_is_no_empty_sum(tmp_path, damage):
    store, work = begun(tmp_path)
    in_this_process(work, lambda task: None)
    path = tmp_path / "s" / "sums" / "2.npz"
    path.unlink() if damage is None else path.write_bytes(damage)
    with pytest.raises(StoreError, match=r"2\.npz: has become unreadable; the same command computes its tiles again"):
        store.fold(2, 5, 12)


def with_sums(folder, seed=0):
    """The sums of a store, of points of this seed, and their spectrum; what is there is used."""
    x, y = points_of(103, seed=seed), points_of(103, 2, seed=seed + 1)
    store = SumsStore.prepare(folder, x, y, 5, 9, lambda: x[:12], f"points {seed}")
    work = SumsWork(str(folder), Centres.of(RBF(1.0), store.centres()))
    in_this_process(work, lambda task: None)
    total = sum(all_sums(store)[1:], all_sums(store)[0])
    return total, store.spectrum(total)


SWAPPED = {"sums/1.npz": "sums/0.npz", "points/c/1/0": "points/c/0/0", "targets/c/1/0": "targets/c/0/0"}
FILES = (*SWAPPED, "centres.npy", "spectrum.npz", "manifest.json")


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", ["flipped", "swapped", "of another store"])
def test_a_file_that_is_not_its_own_is_made_again_or_said(tmp_path, file, damage):
    folder, is_sum = tmp_path / "s", file.startswith(("sums", "spectrum"))
    total, spectrum = with_sums(folder)
    if damage == "flipped":
        content = bytearray((folder / file).read_bytes())
        content[len(content) * 3 // 4] ^= 1
        (folder / file).write_bytes(content)
    elif damage == "of another store":
        with_sums(tmp_path / "other", seed=5)
        shutil.copy(tmp_path / "other" / file, folder / file)
    else:
        shutil.copy(folder / SWAPPED[file], folder / file) if file in SWAPPED else pytest.skip("there is one such file")
    if not is_sum:  # what it is made from is read again
        (folder / "sums" / "1.npz").unlink()
    with nullcontext() if is_sum else pytest.raises(StoreError, match=r"delete the folder|make the store anew"):
        again, as_spectrum = with_sums(folder)
        assert torch.equal(again.outer, total.outer)
        assert torch.equal(again.products, total.products)
        assert torch.equal(as_spectrum.vectors, spectrum.vectors)


@pytest.mark.parametrize("missing", [True, False])
def test_points_that_are_damaged_or_missing_are_said(tmp_path, missing):
    _, work = begun(tmp_path)
    path = tmp_path / "s" / "points" / "c" / "3" / "0"
    path.unlink() if missing else path.write_bytes(path.read_bytes()[:-9] + b"\0" * 9)
    with pytest.raises(StoreError, match=r"tile 3 of its points is .*; delete the folder"):
        in_this_process(work, lambda task: None)


def test_another_regularization_needs_another_pass_only_for_a_flow(tmp_path):
    kernel, x, y = Matern(1.0), points_of(60), points_of(60, 1, seed=2)
    disk = DiskStores(tmp_path, 10**9, lambda work, label: in_this_process(work, lambda task: None))
    passes = {}
    for choose in ("uniform", "flow"):
        for own in (Regularization(1e-2), Regularization(1e-3), Regularization(1e-2, "absolute")):
            with passed(kernel, x, y, Approximation(8, choose, own), disk) as found:
                passes.setdefault(choose, set()).add(found.store.folder)
    assert {choose: len(folders) for choose, folders in passes.items()} == {"uniform": 1, "flow": 3}


def test_tasks_of_a_lane_follow_each_other(tmp_path):
    _, work = begun(tmp_path)
    tasks = work.tasks()
    for task in tasks:
        assert all(tasks.index(before) < tasks.index(task) and before.row == task.row for before in work.needs(task))


# ---- runs and estimators


def table(folder, n=400, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    frame = pd.DataFrame(x, columns=["a", "b", "c"]).assign(y=np.sin(x[:, 0]) + 0.1 * rng.normal(size=n))
    frame.to_csv(folder / "t.csv", index=False)
    return frame


RUN = ("run", "dataset=table", "dataset.path=t.csv", "dataset.target=y", "optimizer.iterations=5", "hydra.run.dir=r")


def test_a_run_predicts_new_rows_as_its_test_rows(kfx, in_folder):
    frame = table(in_folder)
    code, _, err = kfx(*RUN, "evaluation.centres=30")
    assert code == 0, err
    code, _, err = kfx("predict", "r", "t.csv", "--output", "p.csv")
    assert code == 0, err
    own = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    new = pd.read_csv("p.csv")
    rows = [int(np.abs(frame["y"] - value).argmin()) for value in own["target"]]
    assert np.allclose(new["prediction"].to_numpy()[rows], own["prediction"])
    assert np.allclose(new["deviation"].to_numpy()[rows], own["deviation"])
    assert not (in_folder / "r" / "grams").exists()


def test_new_rows_are_predicted_with_the_first_of_several_regularizations(kfx, in_folder):
    frame = table(in_folder)
    assert kfx(*RUN, "evaluation.centres=30", "evaluation.regularization.value=[1e-4,100]")[0] == 0
    own = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    rows = [int(np.abs(frame["y"] - value).argmin()) for value in own["target"]]
    new = load_run(Path("r"))
    predicted = Model.of_run(new).predict_all(frame.drop(columns="y").iloc[rows])
    assert np.allclose(predicted["prediction"], own["prediction"])
    assert np.allclose(predicted["deviation"], own["deviation"])


def test_two_classes_in_one_column_are_predicted(kfx, in_folder):
    words = ("run", "dataset=swiss_roll", "optimizer=none", "evaluation.centres=40", "hydra.run.dir=r")
    assert kfx(*words)[0] == 0
    model = Model.of_run(load_run(Path("r")))
    found = model.predict(model.data.x_train)
    assert np.mean(found["prediction"].to_numpy(str) == model.data.labels_train.astype(str)) > 0.9
    assert np.allclose(found.filter(like="probability").sum(axis=1), 1)


def test_measurements_on_the_way_are_exact(kfx, in_folder):
    table(in_folder)
    code, _, err = kfx(*RUN, "evaluation.centres=30", "follow.every=5", "follow.n_interpolation=[50]")
    assert code == 0, err
    assert (pd.read_csv("r/follow.csv")["metric"] == "mse").sum() == 2


def test_a_run_on_swapped_sums_has_the_numbers_of_its_own(kfx, in_folder):
    table(in_folder)
    for name in ("own", "again"):
        assert kfx(*RUN[:-1], "evaluation.centres=30", "evaluation.store=s", f"hydra.run.dir={name}")[0] == 0
        for store in (in_folder / "s").glob("*/sums"):
            shutil.copy(store / "0.npz", store / "1.npz")
            (store.parent / "spectrum.npz").unlink(missing_ok=True)
    own, again = (pd.read_csv(f"{name}/evaluation.csv") for name in ("own", "again"))
    pd.testing.assert_frame_equal(own, again, check_exact=True)


def test_a_run_on_damaged_centres_is_refused(kfx, in_folder):
    table(in_folder)
    words = (*RUN[:-1], "evaluation.centres=30", "evaluation.store=s")
    assert kfx(*words, "hydra.run.dir=own")[0] == 0
    for store in (in_folder / "s").glob("*/sums"):
        content = bytearray((store.parent / "centres.npy").read_bytes())
        content[len(content) * 3 // 4] ^= 1
        (store.parent / "centres.npy").write_bytes(content)
        (store / "1.npz").unlink()
    code, _, err = kfx(*words, "hydra.run.dir=again")
    assert (code, "centres.npy" in err) == (1, True)


def test_a_run_and_an_estimator_agree(kfx, in_folder):
    table(in_folder)
    assert kfx(*RUN, "evaluation.centres=30")[0] == 0
    rows = pd.read_csv("r/evaluation.csv").query("kernel == 'trained'").set_index("metric")["value"]
    assert rows["centres"] == 30
    model = Model.of_run(load_run(Path("r")))
    data = model.config.dataset.preprocessed(model.data)
    own = KernelFlowRegressor(centres=30, optimizer={"iterations": 5}).fit(data.x_train, data.y_train[:, 0])
    prediction, deviation = own.predict(data.x_test, return_std=True)
    written = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    np.testing.assert_allclose(prediction, written["prediction"], rtol=1e-9)
    np.testing.assert_allclose(deviation, written["deviation"], rtol=1e-9)


@pytest.mark.parametrize(
    ("words", "solver"),
    [
        ([], "nystrom"),
        (["dataset.n_train=30000"], "cholesky"),
        (["outputs.reduce=pca"], "cholesky"),
        (["evaluation.n_interpolation=[100]"], "cholesky"),
        (["dataset=mnist", "dataset.n_train=40000"], "cholesky"),
    ],
)
def test_many_points_of_own_data_go_through_centres(words, solver):
    said = {word.partition("=")[0] for word in words}
    usual = ["dataset=simulator", "dataset.n_train=30001", "evaluation.memory=64GB"]
    raw = composed([*(word for word in usual if word.partition("=")[0] not in said), *words])
    assert check(without_hydra(raw)).evaluation.solver == solver


def test_a_lost_solution_is_said(kfx, in_folder):
    table(in_folder)
    assert kfx(*RUN, "evaluation.centres=30")[0] == 0
    (in_folder / "r" / "solution.npz").unlink()
    code, _, err = kfx("predict", "r", "t.csv")
    assert code == 1
    assert "solution.npz: is missing" in err


def test_a_flow_of_centres_needs_other_points():
    x = points_of(6)
    found = chosen_centres(RBF(1.0), x, x[:, :1], 4, "flow", Regularization(1e-2), np.random.default_rng(0))
    assert len(found) == 4


def test_repeated_rows_have_finite_deviations():
    x = points_of(20).repeat(15, 1).numpy()
    model = KernelFlowRegressor(copies="each", centres=100, regularization=0, optimizer={"iterations": 2}).fit(
        x, x[:, 0]
    )
    deviation = model.predict(points_of(50, seed=1).numpy(), return_std=True)[1]
    assert deviation.max() < 1e3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"solver": "lstsq"}, "solver='lstsq': expected auto, cholesky or nystrom"),
        ({"centres": 20, "n_interpolation": 400}, "n_interpolation=400: expected a whole number from 1 to 100"),
        (
            {"centres": 20, "n_interpolation": 30},
            "n_interpolation=.30.: solver=nystrom, which centres and choose stand for",
        ),
    ],
)
def test_estimators_refuse_what_they_would_ignore(settings, message):
    x = points_of(100).numpy()
    with pytest.raises((ValueError, ConfigError), match=message):
        KernelFlowRegressor(**settings).fit(x, x[:, 0])


def test_the_estimator_of_a_run_has_its_centres(kfx, in_folder):
    table(in_folder)
    assert kfx(*RUN, "evaluation.centres=30")[0] == 0
    settings = load_run(Path("r")).config.evaluation
    own = Model.of_run(load_run(Path("r"))).estimator().get_params()
    assert (own["solver"], own["centres"], own["choose"]) == ("nystrom", 30, settings.choose)


def test_a_gram_matrix_of_a_run_through_centres(kfx, in_folder):
    table(in_folder)
    code, _, err = kfx("gram", *RUN[1:4], "evaluation.centres=30", "--output", ".")
    assert code == 0, err


def test_classes_have_probabilities():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 2))
    labels = np.where(x[:, 0] * x[:, 1] > 0, "same", "other")
    found = KernelFlowClassifier(centres=40, optimizer={"iterations": 10}).fit(x, labels)
    assert found.score(x, labels) > 0.85
    assert np.allclose(found.predict_proba(x).sum(axis=1), 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluation.centres=500"], "evaluation.centres=500: dataset table has 320 training points; take at most 320"),
        (
            ["evaluation.centres=300", "evaluation.memory=1MB"],
            "evaluation.centres=300: so many take 9.0 MB, and evaluation.memory is 1.0 MB; take at most 100",
        ),
        (["evaluation.centres=1"], "evaluation.centres=1: expected a whole number >= 2 and"),
        (["evaluation.choose=best"], "evaluation.choose=best: expected one of uniform, rpcholesky, flow, kmeans"),
        (
            ["evaluation.solver=cholesky", "evaluation.centres=9"],
            "evaluation.centres=9: needs evaluation.solver=nystrom, and it is cholesky",
        ),
        (
            ["evaluation.solver=nystrom", "evaluation.n_interpolation=[9]"],
            "evaluation.n_interpolation=[9]: solver=nystrom",
        ),
        (
            ["evaluation.centres=9", "evaluation.memory=1MB", "follow.every=2"],
            "follow.n_interpolation: needs the Gram matrix of 320 points in memory",
        ),
        (
            ["evaluation.choose=flow", "optimizer=flow_euler"],
            "evaluation.choose=flow: makes new points, and with optimizer=flow_euler the kernel takes training points",
        ),
        (
            ["evaluation.choose=kmeans", "optimizer=flow_euler"],
            "training points only; use rpcholesky, or set flow.record_layers=true",
        ),
        (
            ["evaluation.centres=9", "evaluation.n_interpolation=[9,20]"],
            "evaluation.n_interpolation=[9, 20]: solver=nystrom, which centres and choose stand for, takes all",
        ),
        (["evaluation.centres=9", "evaluation.rho=true"], "evaluation.rho=true: needs evaluation.solver=cholesky"),
        (
            ["evaluation.centres=9", "evaluation.regularization.value=backtest"],
            "evaluation.regularization.value=backtest: forecasts series, and dataset table has none",
        ),
        (
            ["evaluation.centres=9", "outputs.reduce=pca"],
            "outputs.reduce=pca: needs evaluation.solver=cholesky, without centres and choose",
        ),
        (["evaluation.solver=nystrom", "evaluation.rho=true"], "evaluation.rho=true: needs evaluation.solver=cholesky"),
        (
            ["evaluation.centres=9", "outputs.kernels=separate"],
            "outputs.kernels=separate: needs evaluation.solver=chol",
        ),
    ],
)
def test_what_does_not_go_together_is_said(kfx, in_folder, words, message):
    table(in_folder)
    code, _, err = kfx(*RUN, *words)
    assert code == 2
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_two_processes_give_the_same_sums(kfx, in_folder):
    table(in_folder, n=2000)
    assert kfx(*RUN, "evaluation.centres=50", "hydra.run.dir=one")[0] == 0
    assert kfx(*RUN, "evaluation.centres=50", "hydra.run.dir=two", "cluster.workers=2")[0] == 0
    one, two = (pd.read_csv(f"{name}/predictions.csv")["prediction"] for name in ("one", "two"))
    assert np.allclose(one, two, rtol=1e-9)


@pytest.mark.parametrize(
    ("words", "solver"),
    [
        (["dataset.n_train=45000", "dataset.n_test=0", "evaluation=k_fold", "evaluation.memory=64GB"], "nystrom"),
        (["dataset.n_train=36000", "dataset.n_test=0", "evaluation=k_fold", "evaluation.memory=64GB"], "cholesky"),
        (["dataset.n_train=30000", "evaluation.memory=64GB"], "cholesky"),
        (["dataset.n_train=5000", "evaluation.memory=100MB"], "nystrom"),
        (["dataset.n_train=5000", "evaluation.memory=100MB", "evaluation.n_interpolation=[5000]"], "cholesky"),
        (["dataset.n_train=5000", "evaluation.memory=1GB"], "cholesky"),
    ],
)
def test_own_data_go_through_centres_where_a_fold_is_large_or_does_not_fit(words, solver):
    config = load(["dataset=simulator", "dataset.function=friedman", *words])
    assert config.evaluation.solver == solver
    on_disk = "evaluation.n_interpolation=[5000]" in words
    assert config.evaluation.calibration is not on_disk
    if solver == "nystrom":
        assert 100 * config.evaluation.approximation(config).centres ** 2 <= config.evaluation.memory_bytes()
