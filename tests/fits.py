"""Small data and fits that several tests share."""

from __future__ import annotations

import numpy as np
import torch

from tests.records import MemoryRecord


class Rows(MemoryRecord):
    """A record that keeps its rows in memory."""

    def row(self, step):
        self.append((step.iteration, step.evaluation, step.kernel_evaluations, tuple(step.events)))


def bumps(n=40):
    x = torch.linspace(-3, 3, n, dtype=torch.float64)[:, None]
    return x, torch.sin(2 * x) + torch.cos(3 * x)


def points(n, classes=1):
    rng = np.random.default_rng(1)
    labels = torch.as_tensor(rng.choice(classes, n, p=np.arange(1, classes + 1) / sum(range(1, classes + 1))))
    return torch.as_tensor(rng.normal(size=(n, 2))), torch.eye(classes, dtype=torch.float64)[labels]
