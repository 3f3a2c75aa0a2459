"""Flows that are resumed, that stop, and that merge points."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from kfx.flows.layers import StepRule
from kfx.kernels import RBF, Polynomial, Regularized
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.outcomes import Event
from tests.flow_parts import Memory, bumps, euler, runge_kutta, spirals


def test_a_flow_that_stopped_stays_there_when_it_is_resumed(tmp_path):
    def stiff():
        flow = runge_kutta(30, 20)
        flow.max_evaluations = 26
        return flow

    data, rows = bumps(), Memory(tmp_path)
    stiff().fit(RBF(2.0), data, Streams(0), rows)
    last = rows[-1][0]
    assert rows[-1][3] == (Event.FLOW_STOPPED,)
    assert 0 < last < 29
    again = Memory(tmp_path, restored=rows.kept[last])
    stiff().fit(RBF(2.0), data, Streams(0), again)
    assert list(again) == []
    torch.testing.assert_close(again.positions[last], rows.positions[last], rtol=0, atol=0)


def test_an_overshooting_step_stops_the_flow(tmp_path):
    x, y, along = spirals()
    rows = Memory(tmp_path)
    flow = euler(50, batch=None, rule=StepRule("constant", 1e300))
    flowed = flow.fit(Polynomial(3), (x, y, along), Streams(0), rows)
    assert rows[-1][3] == (Event.FLOW_STOPPED,)
    assert rows[-1][1].events[0] in (Event.OVERSHOT, Event.DIVERGED, Event.NOT_POSITIVE_DEFINITE)
    assert bool(flowed.transform(x).isfinite().all())


def test_a_layer_too_stiff_stops_the_flow(tmp_path):
    rows = Memory(tmp_path)
    flow = runge_kutta(3)
    flow.max_evaluations = 5
    flow.fit(RBF(1.0), bumps(), Streams(0), rows)
    assert rows[-1][1].events == (Event.OVERSHOT,)
    assert "more than 5 evaluations" in rows[-1][1].detail


def test_merged_points_leave_the_batches(tmp_path):
    x, y, along = spirals()
    x[1], x[21] = x[0] + 1e-6, x[2]  # one pair of a class, one of two classes
    y[21] = -y[2]
    rows = Memory(tmp_path)
    euler(1, remove_merged=1e-4).fit(RBF(1.4), (x, y, along), Streams(0), rows)
    assert set(rows.kept[1][1]["own"]["candidates"]) == set(range(40)) - {1}
    same = torch.zeros(40, 2, dtype=torch.float64), torch.ones(40, 1, dtype=torch.float64), along
    rows = Memory(tmp_path)
    euler(3, remove_merged=1e-4).fit(RBF(1.4), same, Streams(0), rows)
    assert rows[-1][1].events == (Event.COLLAPSED,)


def test_near_points_are_told_apart_in_single_precision(tmp_path):
    x, y, along = spirals()
    x[1] = x[0] + 2e-4
    rows = Memory(tmp_path)
    euler(1, remove_merged=1e-4).fit(RBF(1.4), (x.float(), y, along.float()), Streams(0), rows)
    assert set(rows.kept[1][1]["own"]["candidates"]) == set(range(40))


def test_points_are_known_by_all_their_digits(tmp_path):
    x, y, along = spirals()
    far = x + 1e7
    flowed = euler(3).fit(RBF(1.4), (far, y, along), Streams(0), rows := Memory(tmp_path))
    torch.testing.assert_close(flowed.transform(far), rows.positions[3][0], rtol=0, atol=0)
    x[0] = torch.tensor([0.0, 1.0])
    flowed = euler(3).fit(RBF(1.4), (x, y, along), Streams(0), rows := Memory(tmp_path))
    found = flowed.transform(torch.tensor([[-0.0, 1.0]], dtype=torch.float64))
    torch.testing.assert_close(found, rows.positions[3][0][:1], rtol=0, atol=0)


@pytest.mark.parametrize("make", [euler, runge_kutta])
def test_layers_in_single_precision_move_points_in_double(make, tmp_path):
    data = tuple(part.float() for part in spirals())
    data = data[0], data[1].double(), data[2]
    flowed = make(3, record_layers=True).fit(RBF(1.4), data, Streams(0), Memory(tmp_path))
    new = np.random.default_rng(0).normal(size=(4, 2))
    moved = flowed.transform(new)
    assert moved.dtype == np.float64
    np.testing.assert_allclose(moved, flowed.transform(new.astype(np.float32)), atol=1e-3)


def test_fewer_candidates_than_a_batch_stop_the_flow(tmp_path):
    rows = Memory(tmp_path)
    euler(5, batch=30, remove_merged=3.0).fit(RBF(1.4), spirals(), Streams(0), rows)
    assert rows[-1][1].events == (Event.COLLAPSED,)


def test_a_flowed_kernel_keeps_its_own_lambda(tmp_path):
    start = Regularized(RBF(1.4), Regularization(0.5, "absolute"))
    flowed = euler(2).fit(start, spirals(), Streams(0), Memory(tmp_path))
    assert flowed.own_regularization == Regularization(0.5, "absolute")


# ---- what is measured
