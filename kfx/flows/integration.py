"""Explicit Runge-Kutta methods with error control, on the device of the state."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kfx.outcomes import Event, NumericalError

Slope = Callable[[torch.Tensor], torch.Tensor]

_SAFETY, _LEAST_FACTOR, _LARGEST_FACTOR = 0.9, 0.2, 10.0
_LEAST_RTOL = 100 * float(np.finfo(np.float64).eps)


def integrate(
    slope: Slope, state: torch.Tensor, method: str, rtol: float, atol: float
) -> tuple[torch.Tensor, np.ndarray]:
    """Integrate dx/dt = slope(x) from t = 0 to 1: the final state, and the times of the accepted steps with 0 and 1.

    state: (n, …), float64. method: an explicit method of SciPy, whose coefficients are used. Initial step and step
        control are those of Hairer, Nørsett & Wanner 1993, §II.4, as in SciPy's `solve_ivp`. Only the norm of an error
        leaves the device.
    NumericalError (overshot) if the step becomes too small.
    """
    tableau = _tableau(method)
    exponent = -1 / (tableau.error_estimator_order + 1)
    rtol, start = max(rtol, _LEAST_RTOL), slope(state)
    step = _first_step(slope, state, start, tableau.error_estimator_order, rtol, atol)
    times = [0.0]
    while (t := times[-1]) < 1:
        least, rejected = 10 * float(np.nextafter(t, np.inf) - t), False
        step = max(step, least)
        while True:
            if step < least:
                raise NumericalError(
                    Event.OVERSHOT, f"the integration ended at t = {t:.3g}: the step would be less than round-off"
                )
            end = min(t + step, 1.0)
            step = end - t
            moved, stages = runge_kutta_step(slope, state, step, method, start)
            stages.append(slope(moved))
            error = _error(tableau, stages, step, atol + rtol * torch.maximum(state.abs(), moved.abs()))
            if error < 1:
                break
            step, rejected = step * max(_LEAST_FACTOR, _SAFETY * error**exponent), True  # NaN gives the least factor
        factor = _SAFETY * error**exponent if error else math.inf
        step *= min(factor, 1.0 if rejected else _LARGEST_FACTOR)
        state, start = moved, stages[-1]
        times.append(end)
    return state, np.array(times)


def runge_kutta_step(
    slope: Slope, state: torch.Tensor, step: float, method: str, start: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The state after one step, (n, …), and the slopes of its stages. start: the first slope, if it is known."""
    tableau = _tableau(method)
    stages = [slope(state) if start is None else start]
    for row in tableau.A[1 : tableau.n_stages]:
        stages.append(slope(_combined(row, stages, step, state)))
    return _combined(tableau.B, stages, step, state), stages


def _combined(weights: np.ndarray, stages: list[torch.Tensor], step: float, state: torch.Tensor) -> torch.Tensor:
    """state + step Σ_s weight_s stage_s."""
    moved = state.clone()
    for weight, stage in zip(weights.tolist(), stages, strict=False):
        if weight:
            moved.add_(stage, alpha=step * weight)
    return moved


def _error(tableau: Any, stages: list[torch.Tensor], step: float, scale: torch.Tensor) -> float:
    """Root mean square of the estimated error, in units of the tolerance."""
    zero = torch.zeros_like(scale)
    if hasattr(tableau, "E5"):  # order 8 combines the estimates of orders 5 and 3
        fifth, third = (float(_norm(_combined(e, stages, 1.0, zero) / scale)) ** 2 for e in (tableau.E5, tableau.E3))
        return abs(step) * fifth / math.sqrt((fifth + 0.01 * third) * scale.numel()) if fifth or third else 0.0
    return float(_norm(_combined(tableau.E, stages, step, zero) / scale)) / math.sqrt(scale.numel())


def _first_step(slope: Slope, state: torch.Tensor, start: torch.Tensor, order: int, rtol: float, atol: float) -> float:
    """An initial step whose Euler error, estimated by a trial step, is about a hundredth of the tolerance."""
    scale, root = atol + rtol * state.abs(), math.sqrt(state.numel())
    size, speed = (float(_norm(each / scale)) / root for each in (state, start))
    trial = min(0.01 * size / speed if size >= 1e-5 and speed >= 1e-5 else 1e-6, 1.0)
    if not trial > 0:  # also for NaN
        raise NumericalError(Event.OVERSHOT, "the field leaves the range of float64 where the integration starts")
    bend = float(_norm((slope(state + trial * start) - start) / scale)) / root / trial
    largest = max(speed, bend)
    step = max(1e-6, trial * 1e-3) if largest <= 1e-15 else (0.01 / largest) ** (1 / (order + 1))
    return min(100 * trial, step, 1.0)


def _norm(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.vector_norm(x)


def _tableau(method: str) -> Any:
    import scipy.integrate

    return getattr(scipy.integrate, method)
