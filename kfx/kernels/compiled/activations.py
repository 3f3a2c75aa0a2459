"""Activations of one pair of units in compiled code: value, slopes, and what they need of a unit's variance.

A new activation is five functions of one unit here, and a branch in each walk that has one.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import types
from numba.extending import overload

from kfx.kernels.compiled.arc_cosine import angle_over_sine
from kfx.numerics.compilation import inner

# ---- numbers of an argument's own type


def like(x: Any, value: float) -> Any:
    """A constant in x's type: Python's own would turn float32 loops into float64 ones."""


@overload(like, inline="always")
def _(x, value):
    if x == types.float32:
        return lambda x, value: np.float32(value)
    return lambda x, value: np.float64(value)


def _horner(degree: int, dtype: type) -> Any:
    """Horner's scheme for `angle_over_sine`."""
    names = {f"c{n}": dtype(c) for n, c in enumerate(angle_over_sine(degree))}
    # Written out, since a loop over coefficients would not stay in registers; in even and odd powers apart, two chains
    # of half the length.
    even, odd = (" + u * u * (".join(list(names)[start::2]) + ")" * ((degree - start) // 2) for start in (0, 1))
    return eval(f"lambda u: ({even}) + u * ({odd})", names)


_FLOAT32, _FLOAT64 = _horner(8, np.float32), _horner(18, np.float64)


def _ratio(u: Any) -> Any:
    """θ / sin θ for θ = arccos(1/2 − u)."""


@overload(_ratio, inline="always")
def _(u):
    return _FLOAT32 if u == types.float32 else _FLOAT64


@inner
def _sine_and_angle(a):
    """sin θ and θ in [0, π/2] for a = cos θ in [0, 1]."""
    one = like(a, 1.0)
    sine = math.sqrt((one - a) * (one + a))
    return sine, sine * _ratio(like(a, 0.5) - a)


@inner
def _modulus(x):
    """|x|, cut at 1, which round-off may exceed."""
    one = like(x, 1.0)
    return abs(x) if abs(x) < one else one


def _settled(x: Any) -> Any:
    """The modulus of a cosine, 1 where it differs from it by round-off: then points are equal, and the angle is 0."""


@overload(_settled, inline="always")
def _(x):
    one = np.float32(1.0) if x == types.float32 else np.float64(1.0)
    most = np.float32(1.0 - 2.0**-19) if x == types.float32 else np.float64(1.0 - 2.0**-48)
    return lambda x: abs(x) if abs(x) < most else one


# ---- activations: of a covariance c, with two numbers for each image, a scale r and an inverse scale q. Value and
# slopes are one function: where the slopes are not used the compiler drops them


@inner
def relu(c, ri, qi, rj, qj):
    """V = √(v v') (sin θ + (π − θ) cos θ) / 2π, cos θ = c / √(v v'), and its slopes to c, (π − θ)/2π, to v,
    √(v'/v) sin θ / 4π, and to v'; 0 at a vanishing variance. r = √v, q = 1/√v."""
    zero, share = like(c, 0.0), like(c, 0.5 / math.pi)
    cosine = (c * qi) * qj  # in this order: the product of two large q may overflow
    sine, angle = _sine_and_angle(_settled(cosine))
    supplement = like(c, math.pi) - angle if cosine > zero else angle
    r = ri * rj
    value = r * (sine + cosine * supplement) * share
    half = sine * like(c, 0.25 / math.pi)
    return value, (supplement * share if r > zero else zero), half * (rj * qi), half * (ri * qj)


@inner
def relu_scales(v):
    zero, one = like(v, 0.0), like(v, 1.0)
    r = math.sqrt(v) if v > zero else zero
    return r, (one / r if v > zero else zero)


@inner
def relu_variance(v):
    """V(v, v, v) and its derivative."""
    half = like(v, 0.5)
    return half * v, half


@inner
def erf(c, ri, qi, rj, qj):
    """V = (2/π) arcsin(u), u = 2c / √((1 + 2v)(1 + 2v')), and its slopes to c, (2/π) u / (c √(1 − u²)), to v,
    −(2/π) u / ((1 + 2v) √(1 − u²)), and to v'. q = 1/√(1 + 2v)."""
    zero, share = like(c, 0.0), like(c, 2.0 / math.pi)
    u = (c + c) * qi * qj
    cosine, angle = _sine_and_angle(_modulus(u))  # of u's complement
    value = like(c, 1.0) - angle * share
    inverse = share / cosine if cosine > zero else zero
    return (
        (value if u > zero else -value),
        (inverse + inverse) * qi * qj,
        -u * inverse * qi * qi,
        -u * inverse * qj * qj,
    )


@inner
def erf_scales(v):
    one = like(v, 1.0)
    return one, one / math.sqrt(one + (v + v))


@inner
def erf_variance(v):
    """(2/π) arcsin(2v/(1 + 2v)) and its derivative."""
    one = like(v, 1.0)
    double = v + v
    value = like(v, 2.0 / math.pi) * math.asin(double / (one + double))
    return value, like(v, 4.0 / math.pi) / ((one + double) * math.sqrt(one + (double + double)))


# ---- the expected product of derivatives, E[φ'(u) φ'(u')], which is an activation's slope to c: its own slopes, and
# its value at a unit itself


@inner
def relu_bend(c, ri, qi, rj, qj):
    """Slopes of (π − θ)/2π to c, 1/(2π √(v v') sin θ), to v, −cos θ/(4π v sin θ), and to v'; 0 where sin θ = 0, as for
    equal points: there it has none, and along the parameters, which keep θ, it does not change."""
    zero = like(c, 0.0)
    cosine = (c * qi) * qj
    sine, _ = _sine_and_angle(_settled(cosine))
    inverse = like(c, 0.5 / math.pi) / sine if sine > zero else zero
    half = -like(c, 0.5) * cosine * inverse
    return inverse * qi * qj, half * qi * qi, half * qj * qj


@inner
def relu_variance_slope(v):
    """E[φ'(u)²] and its derivative."""
    return like(v, 0.5), like(v, 0.0)


@inner
def erf_bend(c, ri, qi, rj, qj):
    """Slopes of (4/π) q q' / √(1 − u²) to c, 2 q q' u/(1 − u²) of it, to v, −q²/(1 − u²) of it, and to v'."""
    zero, one = like(c, 0.0), like(c, 1.0)
    u = (c + c) * qi * qj
    left = (one - u) * (one + u)
    inverse = one / left if left > zero else zero
    slope = like(c, 4.0 / math.pi) * qi * qj * math.sqrt(inverse) * inverse
    return slope * (qi + qi) * qj * u, -slope * qi * qi, -slope * qj * qj


@inner
def erf_variance_slope(v):
    """(4/π) / √(1 + 4v) and its derivative."""
    one = like(v, 1.0)
    inverse = one / (one + like(v, 4.0) * v)
    value = like(v, 4.0 / math.pi) * math.sqrt(inverse)
    return value, -(value + value) * inverse
