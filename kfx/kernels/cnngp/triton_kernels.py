"""Covariance maps through a network on a GPU: Triton programs that take a tile of pairs through all layers.

A program holds one pair's map in registers at a time, padded with zeros to (SIDE, SIDE). It reads the instructions, a
row of numbers each, from a table, so that one compilation serves every architecture. A convolution is two products with
bands of ones; entries outside a map never affect it, since no band reaches them. A map that a later instruction or the
backward pass reads is stored in the program's own strip of memory.
"""

from __future__ import annotations

import os
from enum import IntEnum

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # fused multiply-adds

import triton
import triton.language as tl

from kfx.kernels.compiled.arc_cosine import angle_over_sine


class Kind(IntEnum):
    """The kind of an instruction."""

    CONV = 0
    RELU = 1
    ERF = 2
    ADD = 3


# Columns of an instruction: its kind, the maps that it reads, its number among instructions of its kind, the bands of a
# convolution, whether its map is kept, and whether the backward pass reaches each map that it reads for the first time.
KIND, SOURCE, SECOND, INDEX, ROWS, COLUMNS, KEEP, FRESH, FRESH2, FIELDS = map(tl.constexpr, range(10))

_CONV, _RELU, _ERF = (tl.constexpr(int(kind)) for kind in (Kind.CONV, Kind.RELU, Kind.ERF))
_PI, _SHARE, _HALF_SHARE = (tl.constexpr(x) for x in (3.141592653589793, 0.15915494309189535, 0.07957747154594767))
_TWO_OVER_PI = tl.constexpr(0.6366197723675814)
_EQUAL = tl.constexpr(1.0 - 2.0**-19)  # above this cosine, two points are equal up to round-off
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8 = map(tl.constexpr, angle_over_sine(8))


# ---- activations of a covariance c, with a scale r and an inverse scale q of each image


@triton.jit
def _sine_and_angle(a):
    """Return sin θ and θ in [0, π/2] for a = cos θ in [0, 1]."""
    sine = tl.sqrt_rn((1.0 - a) * (1.0 + a))
    u = 0.5 - a
    even = _C0 + u * u * (_C2 + u * u * (_C4 + u * u * (_C6 + u * u * _C8)))
    odd = _C1 + u * u * (_C3 + u * u * (_C5 + u * u * _C7))
    return sine, sine * (even + u * odd)


@triton.jit
def _relu_angle(c, qi, qj):
    """Return cos θ, sin θ and π − θ."""
    cosine = (c * qi) * qj  # in this order: the product of two large q may overflow
    size = tl.abs(cosine)
    sine, angle = _sine_and_angle(tl.where(size < _EQUAL, size, 1.0))
    return cosine, sine, tl.where(cosine > 0.0, _PI - angle, angle)


@triton.jit
def _activated(c, ri, qi, rj, qj, is_relu):
    """Return V(c): for ReLU √(v v') (sin θ + (π − θ) cos θ) / 2π, for Erf (2/π) arcsin u."""
    if is_relu:
        cosine, sine, supplement = _relu_angle(c, qi, qj)
        out = ri * rj * (sine + cosine * supplement) * _SHARE
    else:
        u = (c + c) * qi * qj
        size = tl.abs(u)
        _, angle = _sine_and_angle(tl.where(size < 1.0, size, 1.0))
        value = 1.0 - angle * _TWO_OVER_PI
        out = tl.where(u > 0.0, value, -value)
    return out


@triton.jit
def _slopes(c, ri, qi, rj, qj, is_relu):
    """Return ∂V/∂c, ∂V/∂v and ∂V/∂v'; 0 where a variance is 0."""
    if is_relu:
        _, sine, supplement = _relu_angle(c, qi, qj)
        to_c = tl.where(ri * rj > 0.0, supplement * _SHARE, 0.0)
        to_v = sine * _HALF_SHARE * (rj * qi)
        to_w = sine * _HALF_SHARE * (ri * qj)
    else:
        u = (c + c) * qi * qj
        size = tl.abs(u)
        cosine, _ = _sine_and_angle(tl.where(size < 1.0, size, 1.0))
        inverse = tl.where(cosine > 0.0, _TWO_OVER_PI / tl.where(cosine > 0.0, cosine, 1.0), 0.0)
        to_c = (inverse + inverse) * qi * qj
        to_v = -u * inverse * qi * qi
        to_w = -u * inverse * qj * qj
    return to_c, to_v, to_w


# ---- one pair through the layers


@triton.jit
def _places(SIDE: tl.constexpr):
    """Return the offsets of a map's entries, (SIDE, SIDE)."""
    return tl.arange(0, SIDE)[:, None] * SIDE + tl.arange(0, SIDE)[None, :]


@triton.jit
def _windows(c, rows, columns, IS_BACK: tl.constexpr, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Return R c Cᵀ for two bands at the given addresses, or with IS_BACK the adjoint, Rᵀ c C."""
    straight = _places(SIDE)
    turned = tl.arange(0, SIDE)[None, :] * SIDE + tl.arange(0, SIDE)[:, None]
    if IS_BACK:
        left = tl.load(rows + turned)
        right = tl.load(columns + straight)
    else:
        left = tl.load(rows + straight)
        right = tl.load(columns + turned)
    return tl.dot(tl.dot(left, c, input_precision=PRECISION), right, input_precision=PRECISION)


@triton.jit
def _product(x, y, channels, SIDE: tl.constexpr):
    """Return the mean over channels of x x', of the images at addresses x and y."""
    c = tl.zeros((SIDE, SIDE), tl.float32)
    at = _places(SIDE)
    for channel in range(channels):
        c += tl.load(x + channel * SIDE * SIDE + at) * tl.load(y + channel * SIDE * SIDE + at)
    return c / channels


@triton.jit
def _step(c, row, k, kept, scales_i, scales_j, bands, weights, biases, SIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Return the map that instruction k makes. c: the previous map. kept: address of the stored maps."""
    at = _places(SIDE)
    kind = tl.load(row + KIND)
    source = tl.load(row + SOURCE)
    if source != k:
        c = tl.load(kept + source * SIDE * SIDE + at)
    if kind == _CONV:
        index = tl.load(row + INDEX)
        rows = bands + tl.load(row + ROWS) * SIDE * SIDE
        columns = bands + tl.load(row + COLUMNS) * SIDE * SIDE
        c = _windows(c, rows, columns, False, SIDE, PRECISION) * tl.load(weights + index) + tl.load(biases + index)
    elif kind == _RELU or kind == _ERF:  # noqa: SIM109
        place = tl.load(row + INDEX) * 2 * SIDE * SIDE + at
        ri = tl.load(scales_i + place)
        rj = tl.load(scales_j + place)
        qi = tl.load(scales_i + place + SIDE * SIDE)
        qj = tl.load(scales_j + place + SIDE * SIDE)
        c = _activated(c, ri, qi, rj, qj, kind == _RELU)
    else:
        c = c + tl.load(kept + tl.load(row + SECOND) * SIDE * SIDE + at)
    if tl.load(row + KEEP) != 0:
        tl.store(kept + (k + 1) * SIDE * SIDE + at, c)
        tl.debug_barrier()
    return c


@triton.jit
def gram(
    x, y, scales_x, scales_y, tiles, table, bands, weights, biases, strips, out,
    n, m, is_triangle, side, steps, channels, activations,
    SIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write K(x, y) of a tile of side × side pairs; for K(x, x) the pairs above the diagonal, into both triangles.

    x, y: images padded with zeros, (n, channels, SIDE, SIDE). scales: (n, activations, 2, SIDE, SIDE). tiles: the first
    image of each side, (programs, 2). table: (steps, FIELDS). strips: (programs, steps + 1, SIDE, SIDE). out: (n, m).
    """
    at = _places(SIDE)
    area = SIDE * SIDE
    number = tl.program_id(0).to(tl.int64)
    top = tl.load(tiles + 2 * number)
    left = tl.load(tiles + 2 * number + 1)
    kept = strips + number * (steps + 1) * area
    for pair in range(side * side):
        i = (top + pair // side).to(tl.int64)
        j = (left + pair % side).to(tl.int64)
        if (i < n) & (j < m) & ((is_triangle == 0) | (i < j)):
            scales_i = scales_x + i * activations * 2 * area
            scales_j = scales_y + j * activations * 2 * area
            c = _product(x + i * channels * area, y + j * channels * area, channels, SIDE)
            tl.debug_barrier()  # what the pair before this one left is read no more
            tl.store(kept + at, c)
            tl.debug_barrier()
            for k in range(steps):
                row = table + k * FIELDS
                c = _step(c, row, k, kept, scales_i, scales_j, bands, weights, biases, SIDE, PRECISION)
            value = tl.sum(tl.sum(tl.where(at == 0, c, 0.0), axis=1), axis=0)
            tl.store(out + i * m + j, value)
            if is_triangle != 0:
                tl.store(out + j * m + i, value)


@triton.jit
def _add_at(address, value):
    tl.store(address, tl.load(address) + value)


@triton.jit
def _step_back(
    row, k, kept, cotangents, sums, to_i, to_j, scales_i, scales_j, bands, weights,
    SIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the cotangents of the maps that instruction k reads, of its weight and bias, and of the images' variances.

    They follow from the cotangent of the instruction's own map.
    """
    at = _places(SIDE)
    area = SIDE * SIDE
    kind = tl.load(row + KIND)
    source = tl.load(row + SOURCE)
    g = tl.load(cotangents + (k + 1) * area + at)
    c = tl.load(kept + source * area + at)
    index = tl.load(row + INDEX)
    if kind == _CONV:
        rows = bands + tl.load(row + ROWS) * area
        columns = bands + tl.load(row + COLUMNS) * area
        spread = _windows(g, rows, columns, True, SIDE, PRECISION)
        _add_at(sums + 2 * index, tl.sum(tl.sum(spread * c, axis=1), axis=0).to(tl.float64))
        _add_at(sums + 2 * index + 1, tl.sum(tl.sum(g, axis=1), axis=0).to(tl.float64))
        to_c = spread * tl.load(weights + index)
    elif kind == _RELU or kind == _ERF:  # noqa: SIM109
        place = index * 2 * area + at
        ri = tl.load(scales_i + place)
        rj = tl.load(scales_j + place)
        qi = tl.load(scales_i + place + area)
        qj = tl.load(scales_j + place + area)
        by_c, by_v, by_w = _slopes(c, ri, qi, rj, qj, kind == _RELU)
        _add_at(to_i + index * area + at, by_v * g)
        _add_at(to_j + index * area + at, by_w * g)
        to_c = by_c * g
    else:
        to_c = g
        second = cotangents + tl.load(row + SECOND) * area + at
        if tl.load(row + FRESH2) == 0:
            g = g + tl.load(second)
        tl.store(second, g)
    first = cotangents + source * area + at
    if tl.load(row + FRESH) == 0:
        to_c = to_c + tl.load(first)
    tl.store(first, to_c)
    tl.debug_barrier()


@triton.jit
def pull(
    x, y, scales_x, scales_y, tiles, table, bands, weights, biases, strips, cotangent, sums, to_images,
    n, m, is_triangle, side, steps, channels, activations, convolutions, wanted_channels,
    SIDE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a tile of pairs, each computed again and pulled back; for K(x, x) of those above the
    diagonal.

    cotangent: sum of both triangles, (n, m). strips: maps and cotangents, (programs, 2, steps + 1, SIDE, SIDE). sums:
    gradients of weights and biases, (programs, convolutions, 2), float64. to_images: gradients of the variances of the
    tile's rows and columns, and of their pixels, (programs, 2, side, activations + wanted_channels, SIDE, SIDE).
    """
    at = _places(SIDE)
    area = SIDE * SIDE
    number = tl.program_id(0).to(tl.int64)
    top = tl.load(tiles + 2 * number)
    left = tl.load(tiles + 2 * number + 1)
    kept = strips + number * 2 * (steps + 1) * area
    cotangents = kept + (steps + 1) * area
    own_sums = sums + number * convolutions * 2
    each = (activations + wanted_channels) * area
    for pair in range(side * side):
        i = (top + pair // side).to(tl.int64)
        j = (left + pair % side).to(tl.int64)
        if (i < n) & (j < m) & ((is_triangle == 0) | (i < j)):
            scales_i = scales_x + i * activations * 2 * area
            scales_j = scales_y + j * activations * 2 * area
            xi = x + i * channels * area
            xj = y + j * channels * area
            tl.debug_barrier()  # what the pair before this one left is read no more
            to_i = to_images + (number * 2 * side + pair // side) * each
            to_j = to_images + (number * 2 * side + side + pair % side) * each
            c = _product(xi, xj, channels, SIDE)
            tl.store(kept + at, c)
            tl.debug_barrier()
            for k in range(steps):
                row = table + k * FIELDS
                c = _step(c, row, k, kept, scales_i, scales_j, bands, weights, biases, SIDE, PRECISION)
            tl.store(cotangents + steps * area + at, tl.where(at == 0, tl.load(cotangent + i * m + j), 0.0))
            tl.debug_barrier()
            for back in range(steps):
                k = steps - 1 - back
                row = table + k * FIELDS
                _step_back(
                    row, k, kept, cotangents, own_sums, to_i, to_j, scales_i, scales_j, bands, weights, SIDE, PRECISION
                )
            g = tl.load(cotangents + at) / channels
            for channel in range(wanted_channels):
                place = channel * area + at
                _add_at(to_i + activations * area + place, g * tl.load(xj + place))
                _add_at(to_j + activations * area + place, g * tl.load(xi + place))
