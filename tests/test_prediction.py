"""What a kernel's own head predicts: log-likelihood and calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kfx.kernels.prediction import Prediction


def test_the_log_likelihood_of_classes_is_that_of_their_probabilities():
    logits = torch.tensor([[1.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    found = Prediction.of_logits(logits).log_likelihood(torch.eye(2))
    np.testing.assert_allclose(found, torch.nn.functional.log_softmax(logits, dim=1).diagonal())


def test_the_log_likelihood_of_a_regression_is_a_normal_density():
    mean, variance = torch.tensor([[0.2, -0.1]], dtype=torch.float64), torch.tensor([2.0], dtype=torch.float64)
    found = Prediction(mean, variance=variance)
    targets = torch.tensor([[1.0, 0.0]])
    expected = -math.log(2 * math.pi * 2) - (0.8**2 + 0.1**2) / 4
    assert float(found.log_likelihood(targets)) == pytest.approx(expected)
    assert math.isnan(found.calibration_error(targets))


def test_calibration_compares_confidence_with_how_often_it_is_right():
    p = torch.tensor([[0.9, 0.1]] * 10 + [[0.3, 0.7]] * 10, dtype=torch.float64)
    targets = torch.eye(2)[[0] * 8 + [1] * 2 + [1] * 7 + [0] * 3]
    assert Prediction(p, p.log()).calibration_error(targets) == pytest.approx(0.5 * 0.1)
    sure = torch.tensor([[1.0, 1e-300]], dtype=torch.float64)
    assert Prediction(sure, sure.log()).calibration_error(torch.tensor([[0.0, 1.0]])) == pytest.approx(1)
