"""The comparison of pooled kernels: matrices are computed once, and errors count draws and images."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from kfx.kernels import CNNGP
from kfx.kernels.cnngp.architectures import architecture

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def compare_pooled():
    spec = importlib.util.spec_from_file_location("compare_pooled", ROOT / "scripts/compare_pooled.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_matrices_are_computed_once_and_continued(compare_pooled, tmp_path, monkeypatch):
    kernel = CNNGP(architecture("myrtle5", (8, 8)), 1.0, 0.1)
    monkeypatch.setattr(compare_pooled, "FOLDER", tmp_path)
    rng = np.random.default_rng(0)
    x, z = (torch.as_tensor(rng.normal(size=(n, 1, 8, 8))) for n in (7, 4))
    first = compare_pooled.matrices("small", kernel, x, z, rows=3)
    np.testing.assert_allclose(first[0], kernel.gram(x), rtol=1e-10)
    np.testing.assert_allclose(first[1], kernel.gram(z, x), rtol=1e-12)
    (tmp_path / "matrices" / "small" / "train-7-3.npz").unlink()  # as after a kill
    again = compare_pooled.matrices("small", kernel, x, z, rows=3)
    np.testing.assert_array_equal(again[0], first[0])
    nothing_left = compare_pooled.matrices("small", None, x, z, rows=3)
    np.testing.assert_array_equal(nothing_left[1], first[1])


def test_the_error_of_a_mean_counts_draws_and_images(compare_pooled):
    rng = np.random.default_rng(0)

    def crossed():
        return rng.normal(size=(20, 1)) + 2 * rng.normal(size=(1, 50)) + rng.normal(size=(20, 50))

    drawn = [crossed() for _ in range(1000)]
    errors = [compare_pooled.error_of(found) for found in drawn]
    assert np.mean(errors) == pytest.approx(np.std([found.mean() for found in drawn]), rel=0.1)
