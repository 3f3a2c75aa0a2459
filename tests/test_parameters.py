"""Parameters of any sign and in blocks: vectors, spaces, steps, and what a record shows of them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest
import torch

from kfx.kernels import NNGP, RBF, Dictionary, Formula, GreensFunction
from kfx.kernels.parameters import Parameters
from kfx.kernels.space import Space
from kfx.numerics.arrays import as_kind


def shifted(x, y, offset, slope):
    return torch.exp(-((x[:, None] - y[None]).square().sum(dim=2))) + offset**2 + 0 * slope


def test_a_signed_parameter_may_be_negative_and_others_may_not():
    kernel = Formula(shifted, {"offset": -0.5, "slope": 1.0}, bounds={"offset": (-2.0, 2.0)}, signed=["offset"])
    assert kernel.with_flat([-1.5, 0.3]).parameters == {"offset": -1.5, "slope": 0.3}
    with pytest.raises(ValueError, match="slope takes a finite number > 0"):
        kernel.with_parameters(slope=-1.0)
    with pytest.raises(ValueError, match="begin above 0"):
        Formula(shifted, {"offset": 0.5, "slope": 1.0}, bounds={"offset": (-2.0, 2.0)})
    total = kernel + RBF(2.0)
    assert total.signed == {"0.offset"}
    assert total.with_flat([-1.0, 1.0, 3.0]).parameters["0.offset"] == -1.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: RBF(1.0).with_parameters(sigma=[1.0, 2.0]), "sigma takes a number, got"),
        (lambda: Dictionary(["gaussian", "linear"]).with_parameters(weight=[1, 1, 1]), r"shape \(2,\)"),
        (lambda: NNGP(2).with_parameters(weight_variance=[1.0, 1.0, 1.0, 1.0, 1.0]), "weight_variance takes"),
        (lambda: RBF(1.0, bounds={"sigma": (5.0, 1.0)}), "bounds of sigma must rise"),
        (lambda: RBF(1.0, bounds={"sigma": (np.nan, 1.0)}), "bounds of sigma must rise"),
    ],
)
def test_values_of_another_shape_and_bounds_that_do_not_rise_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_the_trained_parameters_may_come_from_a_generator():
    members = ["gaussian", "linear"]
    found = Dictionary(members, trainable=(name for name in ("weight", "gaussian_length")))
    assert found.trainable == Dictionary(members, trainable=["weight", "gaussian_length"]).trainable != ()


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_logarithms_are_of_what_cannot_be_negative(kind):
    bounds = np.array([[0.1, 10.0], [-5.0, 5.0], [0.0, 2.0]])
    like = np.zeros(1) if kind == "numpy" else torch.zeros(1, dtype=torch.float64)
    space = Space("log", bounds)
    vector = as_kind([2.0, -3.0, 0.5], like)
    at = space.to_coordinates(vector)
    np.testing.assert_allclose(at, [np.log(2), -3.0, np.log(0.5)])
    np.testing.assert_allclose(space.to_parameters(at), vector)
    np.testing.assert_allclose(space.gradient(vector, as_kind([1.0, 1.0, 1.0], like)), [2.0, 1.0, 0.5])
    far = space.project(as_kind([9.0, -9.0, 0.0], like))
    np.testing.assert_allclose(far, [np.log(10), -5.0, 0.0])
    assert type(far) is type(vector)


def test_without_bounds_nothing_is_projected():
    space = Space("log", np.array([[-np.inf, np.inf]] * 3))
    vector = torch.tensor([1e9, -1e9, 0.0])
    assert space.project(vector) is vector
    assert space.to_coordinates(vector) is vector


class Held(Parameters):
    default_bounds: ClassVar = {}


def test_many_parameters_are_shown_by_norms():
    few = Held({"sigma": 2.0, "variance": np.array([3.0, 4.0])})
    assert few.shown == {"sigma": 2.0, "variance.0": 3.0, "variance.1": 4.0}
    many = Held({"sigma": 2.0, "w": np.full(400, 0.5), "b": torch.full((10, 10), 0.1)})
    assert many.are_many
    assert many.shown == pytest.approx({"sigma": 2.0, "w.norm": 10.0, "b.norm": 1.0})


def test_a_draw_without_bounds_is_refused():
    kernel = GreensFunction(modes=2, bounds={"cosine": (-np.inf, np.inf)}).drawn(np.random.default_rng(0))
    assert kernel.flat.shape == (4,)  # it has a rule of its own
    free = Formula(shifted, {"offset": 1.0, "slope": 1.0}, bounds={"offset": (-np.inf, np.inf)}, signed=["offset"])
    with pytest.raises(ValueError, match="without bounds"):
        free.drawn(np.random.default_rng(0))
