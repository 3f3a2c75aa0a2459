"""Small flows and a record of their positions in memory."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from kfx.data import synthetic
from kfx.flows.euler import EulerFlow
from kfx.flows.flow import FlowSettings
from kfx.flows.layers import StepRule
from kfx.flows.runge_kutta import RungeKuttaFlow
from kfx.flows.vector_field import (
    Interpolation,
)
from kfx.numerics.regularization import Regularization
from kfx.objectives import rho
from kfx.optimizers.loss import Loss
from kfx.sampling.samplers import Sampler
from tests.records import MemoryRecord

NUGGET = Regularization(1e-4, "absolute")


class Memory(MemoryRecord):
    def row(self, step):
        self.append((step.iteration, step.evaluation, dict(step.diagnostics), tuple(step.events)))


def spirals(n=40):
    data = synthetic.swiss_roll(n, 20, "symmetric", (np.pi / 2, 5 * np.pi / 2))
    return tuple(torch.as_tensor(part) for part in (data.x_train, data.y_train, data.x_test))


def bumps(n=60):
    data = synthetic.three_bumps(n, 25, "grid", np.random.default_rng(0))
    return tuple(torch.as_tensor(part) for part in (data.x_train, data.y_train, data.x_test))


def settings(**changes):
    return FlowSettings(**{"interpolation": Interpolation(None, NUGGET), **changes})


def euler(iterations=12, batch=None, objective=rho, rule=None, test_step="train", over="batch", **changes):
    loss = partial(Loss, objective, NUGGET)
    rule = rule or StepRule("absolute", 0.05)
    return EulerFlow(loss, Sampler(batch), iterations, settings(**changes), rule=rule, test_step=test_step, over=over)


def runge_kutta(iterations=4, batch=30, method="RK45", **changes):
    loss = partial(Loss, rho, NUGGET)
    options = {"rtol": 1e-3, "atol": 1e-6, "max_evaluations": 2000}
    return RungeKuttaFlow(loss, Sampler(batch), iterations, settings(**changes), method=method, **options)


# ---- the field
