"""Batches and samples: which points, how many, in which order, from which stream."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kfx import KernelFlowRegressor, load_run
from kfx.kernels import RBF
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.objectives import loo, rho
from kfx.optimizers.loss import Loss
from kfx.sampling.samplers import (
    Batch,
    DynamicSampler,
    EpochSampler,
    LinearSampler,
    Neighbourhood,
    Sampler,
    sample_size,
    viewed,
)
from tests.fits import bumps, points


def test_batches_lead_with_their_sample_and_follow_the_seed():
    sampler = Sampler(10, 0.3).start(*points(50))
    batch = sampler.draw(Streams(3)["batches"])
    assert batch.sample_size == 3
    assert len(set(batch.indices)) == 10
    np.testing.assert_array_equal(batch.indices, sampler.draw(Streams(3)["batches"]).indices)
    assert not np.array_equal(batch.indices, sampler.draw(Streams(4)["batches"]).indices)
    assert Sampler(None, 0.5).start(*points(7)).draw(Streams(0)["batches"]).indices.shape == (7,)
    assert [sample_size(2, 0.01), sample_size(2, 0.99), sample_size(600, 0.5)] == [1, 1, 300]


def test_an_epoch_has_every_point_once():
    sampler, rng = EpochSampler(8, 0.5).start(*points(20)), np.random.default_rng(0)
    batches = [sampler.draw(rng, i) for i in range(6)]
    assert [len(batch.indices) for batch in batches] == [8, 8, 4, 8, 8, 4]
    assert [batch.sample_size for batch in batches] == [4, 4, 2, 4, 4, 2]
    for first in (0, 3):
        assert sorted(np.concatenate([batch.indices for batch in batches[first : first + 3]])) == list(range(20))
    assert not np.array_equal(batches[0].indices, batches[3].indices)
    # one that goes on from a state draws what the first would have drawn
    other, later = EpochSampler(8, 0.5).start(*points(20)), np.random.default_rng(0)
    for _ in range(4):
        other.draw(later)
    kept = other.state()
    resumed = EpochSampler(8, 0.5).start(*points(20))
    resumed.restore(kept)
    np.testing.assert_array_equal(resumed.draw(later).indices, batches[4].indices)
    assert resumed.shown(batches[4]) == {"epoch": 2}
    alone = EpochSampler(8, 0.5).start(*points(17))
    assert [len(alone.draw(rng).indices) for _ in range(4)] == [8, 8, 8, 8], "a batch of one point is none"


def test_views_move_and_mirror_images():
    x = torch.arange(2 * 3 * 4 * 5, dtype=torch.float64).reshape(2, 3, 4, 5) + 1
    made = viewed(x, torch.tensor([[1, -2, 0], [0, 0, 1]]))
    expected = np.zeros((3, 4, 5))
    expected[:, 1:, :3] = x[0, :, :3, 2:]
    np.testing.assert_array_equal(made[0], expected)
    np.testing.assert_array_equal(made[1], x[1].flip(2))
    sampler = Sampler(30, augment=["crop", "flip"], padding=2)
    batch = sampler.start(x.repeat(20, 1, 1, 1), torch.zeros(40, 1)).draw(np.random.default_rng(0))
    assert set(batch.views[:, 0]) == set(batch.views[:, 1]) == {-2, -1, 0, 1, 2}
    assert set(batch.views[:, 2]) == {0, 1}
    plain = Sampler(30).start(x.repeat(20, 1, 1, 1), torch.zeros(40, 1)).draw(np.random.default_rng(0))
    np.testing.assert_array_equal(plain.indices, batch.indices)
    assert plain.views is None


def test_streams_do_not_know_each_other():
    alone, both = Streams(0), Streams(0)
    both["data"].random(1000)
    np.testing.assert_array_equal(alone["batches"].random(5), both["batches"].random(5))
    assert not np.array_equal(Streams(0)["data"].random(5), Streams(0)["batches"].random(5))


def test_a_linear_schedule_goes_from_end_to_end():
    sampler = LinearSampler(40, 0.1, 0.5, iterations=5).start(*points(60))
    rng = np.random.default_rng(0)
    assert [sampler.draw(rng, i).sample_size for i in range(5)] == [4, 8, 12, 16, 20]
    assert LinearSampler(40, 0.3, 0.5, iterations=1).proportion(0) == 0.3


def test_a_dynamic_schedule_follows_the_last_rhos():
    sampler = DynamicSampler(100, window=2, floor=0.1).start(*points(100))
    rng = np.random.default_rng(0)
    assert sampler.draw(rng).sample_size == sampler.draw(rng).half_size == 50
    sampler.observe(0.2)
    assert sampler.proportion(1) == pytest.approx(0.4)
    sampler.observe(float("nan"))
    sampler.observe(0.6)
    assert sampler.proportion(2) == pytest.approx(0.5 * (1 - 0.4))
    for value in (0.9, 1.0):
        sampler.observe(value)
    assert sampler.proportion(3) == 0.1
    other = DynamicSampler(100, window=2, floor=0.1)
    other.restore(sampler.state())
    assert other.proportion(4) == 0.1
    other.restore([])
    assert other.proportion(0) == 0.5


@pytest.mark.parametrize("objective", [rho, loo], ids=["rho", "loo"])
def test_the_half_sample_is_measured_on_the_same_batch(objective):
    x, y = bumps()
    loss = Loss(objective, Regularization(1e-6, "centered"), RBF(0.7), x, y)
    sampler = DynamicSampler(30, window=3, floor=0.05).start(x, y)
    sampler.observe(0.5)
    batch = sampler.draw(np.random.default_rng(0))
    assert (batch.sample_size, batch.half_size) == (8, 15)
    found = loss(np.array([0.7]), batch)
    again = [Batch(batch.indices, size) for size in (8, 15)]
    plain = Loss(rho, Regularization(1e-6, "centered"), RBF(0.7), x, y)
    assert [found.rho, found.rho_half] == pytest.approx([plain(np.array([0.7]), each).rho for each in again], rel=1e-12)
    assert np.isfinite(found.gradient).all()


def test_a_dynamic_run_shows_its_sample(kfx):
    words = ["sampler=dynamic", "sampler.batch_size=40", "sampler.window=3", "optimizer=adam", "optimizer.iterations=8"]
    small = [
        "dataset=digits",
        "dataset.n_train=120",
        "dataset.n_test=60",
        "figures=false",
        "device.precision_check=off",
    ]
    assert kfx("run", *words, *small, "hydra.run.dir=r")[0] == 0
    sizes = load_run("r").trace["diagnostic.sample_size"]
    assert sizes[0] == 20
    assert sizes[1:].max() < 20


# ---- which points, and how many samples of them


def test_stratified_batches_and_samples_hold_the_classes_in_proportion():
    x, y = points(300, classes=3)
    share = y.mean(dim=0).numpy()
    sampler = Sampler(60, 0.4, "stratified", samples=3).start(x, y)
    batch = sampler.draw(np.random.default_rng(0))
    assert len(set(batch.indices)) == 60
    for order in (np.arange(60), *batch.orders):
        there = y[batch.indices][order].numpy()
        assert np.abs(there.sum(axis=0) - 60 * share).max() <= 1
        assert np.abs(there[:24].sum(axis=0) - 24 * share).max() <= 1.5
    again = sampler.draw(np.random.default_rng(1))
    assert set(again.indices) != set(batch.indices)


def test_neighbours_follow_the_lengths_of_the_kernel():
    x = torch.as_tensor(np.random.default_rng(0).normal(size=(200, 2)))
    sampler = Sampler(12, 0.5, "neighbourhood").start(x, x[:, :1])
    lengths = np.array([0.1, 10.0])
    sampler.follow(lengths)
    batch = sampler.draw(np.random.default_rng(5))
    centre = int(np.random.default_rng(5).integers(200))
    nearest = ((x - x[centre]) / torch.as_tensor(lengths)).norm(dim=1).argsort()[:12]
    assert set(batch.indices) == set(nearest.tolist())
    assert sampler.compares_points
    batch = sampler.draw(np.random.default_rng(5))
    sampler.follow(3.0 * lengths)
    assert set(sampler.draw(np.random.default_rng(5)).indices) == set(batch.indices), "a common factor changes no order"


def test_batches_of_neighbours_change_with_the_lengths_of_a_fit():
    x = np.random.default_rng(0).normal(size=(150, 3))
    sampler = {"choice": "neighbourhood", "batch_size": 40}
    fitted = KernelFlowRegressor(sampler=sampler, optimizer={"iterations": 60}).fit(x, np.sin(2 * x[:, 0]))
    assert np.argmin(fitted.lengths_) == 0
    assert fitted.score(x, np.sin(2 * x[:, 0])) > 0.99


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [0.0, 300.0, 2000.0, 1e5])  # from 0, as years are, in deviations
def test_neighbours_far_from_zero_are_the_nearest(far, dtype):
    x = (torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + far).to(dtype)
    found = Neighbourhood(x, torch.zeros(200, 1)).nearest(np.arange(200), 8)
    exact = np.linalg.norm((x[:, None].double() - x[None].double()).numpy(), axis=2)
    limit = np.sort(exact, axis=1)[:, 7]
    assert (np.take_along_axis(exact, found, axis=1) <= limit[:, None] * (1 + 1e-4) + 1e-12).all()
    assert (found == np.arange(200)[:, None]).any(axis=1).all(), "a point is its own neighbour"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e6, 1e8, 1e12])
def test_one_far_point_and_copies_leave_the_neighbours_of_the_others(far, dtype):
    x = torch.randn(200, 2, generator=torch.Generator().manual_seed(0), dtype=dtype)
    x[10:14] = x[9]
    x[0] = far
    found = Neighbourhood(x, torch.zeros(200, 1)).nearest(np.arange(200), 4)
    exact = np.linalg.norm((x[:, None].double() - x[None].double()).numpy(), axis=2)
    limit = np.sort(exact, axis=1)[:, 3]
    assert (np.take_along_axis(exact, found, axis=1) <= limit[:, None] * (1 + 1e-5)).all()
    assert (found[:, 0] == np.arange(200)).all(), "a point is the first of its neighbours, also among copies"


def test_a_neighbourhood_is_a_point_and_those_nearest_to_it():
    x, y = points(80)
    batch = Sampler(12, 0.5, "neighbourhood").start(x, y).draw(np.random.default_rng(5))
    centre = int(np.random.default_rng(5).integers(80))
    nearest = np.argsort(np.linalg.norm(x.numpy() - x[centre].numpy(), axis=1))[:12]
    assert set(batch.indices) == set(nearest)
    assert batch.indices[0] != centre, "the sample is a random part of it"


@pytest.mark.parametrize("objective", [rho, loo], ids=["rho", "loo"])
def test_the_mean_over_samples_is_that_of_the_samples(objective):
    x, y = bumps()
    loss = Loss(objective, Regularization(1e-4, "centered"), RBF(0.7), x, y)
    batch = Sampler(30, 0.5, samples=4).start(x, y).draw(np.random.default_rng(0))
    assert len(batch.orders) == 3
    found = loss(np.array([0.7]), batch)
    each = [loss(np.array([0.7]), Batch(batch.indices[o], 15)) for o in (np.arange(30), *batch.orders)]
    assert found.objective == pytest.approx(np.mean([e.objective for e in each]), rel=1e-12)
    assert found.rho == pytest.approx(np.mean([e.rho for e in each]), rel=1e-12)
    assert found.gradient[0] == pytest.approx(np.mean([e.gradient[0] for e in each]), rel=1e-9)


# ---- lambda as a parameter


@pytest.mark.parametrize(("n", "nearest", "up"), [(25, 12, 13), (353, 176, 177), (100, 50, 50), (2, 1, 1)])
def test_the_rounding_of_the_sample_size(n, nearest, up):
    assert sample_size(n, 0.5) == nearest
    assert sample_size(n, 0.5, "up") == up
