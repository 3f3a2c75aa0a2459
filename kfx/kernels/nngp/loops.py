"""A dense network's covariances in compiled loops: a product of the points, then all layers while it is in cache.

A strip is some rows of K(x, y) from one column on; of K(x, x) from the diagonal on, and what lies above it is looked
at. The weights and biases are those of all layers, the first among them; scales are (depth, points), as activations
take them. The kernel is the NTK of a network whose first `fixed` layers are not trained; with `fixed` = depth that is
the NNGP.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kfx.kernels.compiled.activations import (
    erf,
    erf_bend,
    erf_scales,
    erf_variance,
    erf_variance_slope,
    like,
    relu,
    relu_bend,
    relu_scales,
    relu_variance,
    relu_variance_slope,
)
from kfx.numerics.compilation import entry, inner, summing, summing_entry

RELU, ERF = range(2)
_BLOCK = 512  # entries of a row that go through all layers before the next: what they need stays in the first cache
_SQUARE = 32  # rows and columns of what is transposed at once


# ---- one layer of some entries of a row


def _layers(activation: Any, bend: Any) -> tuple[Any, Any, Any, Any]:
    @inner
    def value(c, ri, qi, rj, qj, weight, bias):
        for j in range(len(c)):
            made, _, _, _ = activation(c[j], ri, qi, rj[j], qj[j])
            c[j] = weight * made + bias

    @inner
    def tangent(c, t, ri, qi, rj, qj, weight, bias):
        for j in range(len(c)):
            made, slope, _, _ = activation(c[j], ri, qi, rj[j], qj[j])
            c[j] = weight * made + bias
            t[j] = weight * slope * t[j] + c[j]

    @summing
    def back(g, c, ri, qi, rj, qj, weight, to_vj):
        to_weight = to_bias = to_vi = like(weight, 0.0)
        for j in range(len(c)):
            made, slope_c, slope_i, slope_j = activation(c[j], ri, qi, rj[j], qj[j])
            to_weight += g[j] * made
            to_bias += g[j]
            scaled = weight * g[j]
            to_vi += scaled * slope_i
            to_vj[j] += scaled * slope_j
            g[j] = scaled * slope_c
        return to_weight, to_bias, to_vi

    @summing
    def tangent_back(g, gt, c, t, ri, qi, rj, qj, weight, to_vj):
        to_weight = to_bias = to_vi = like(weight, 0.0)
        for j in range(len(c)):
            made, slope_c, slope_i, slope_j = activation(c[j], ri, qi, rj[j], qj[j])
            bend_c, bend_i, bend_j = bend(c[j], ri, qi, rj[j], qj[j])
            whole = g[j] + gt[j]
            to_weight += whole * made + gt[j] * slope_c * t[j]
            to_bias += whole
            scaled, bent = weight * whole, weight * gt[j] * t[j]
            to_vi += scaled * slope_i + bent * bend_i
            to_vj[j] += scaled * slope_j + bent * bend_j
            g[j] = scaled * slope_c + bent * bend_c
            gt[j] = weight * gt[j] * slope_c
        return to_weight, to_bias, to_vi

    return value, tangent, back, tangent_back


_relu, _relu_tangent, _relu_back, _relu_tangent_back = _layers(relu, relu_bend)
_erf, _erf_tangent, _erf_back, _erf_tangent_back = _layers(erf, erf_bend)


@inner
def _first(c, product, weight, bias):
    for j in range(len(c)):
        c[j] = weight * product[j] + bias


@summing
def _first_back(g, product):
    to_weight = to_bias = like(g[0], 0.0)
    for j in range(len(g)):
        to_weight += g[j] * product[j]
        to_bias += g[j]
    return to_weight, to_bias


@inner
def _mirror(matrix, top, stop):
    """Copy the rows from `top`, right of the diagonal, into the columns below it."""
    for i in range(top, stop, _SQUARE):
        for j in range(i, len(matrix), _SQUARE):
            for row in range(i, min(i + _SQUARE, stop)):
                for column in range(max(j, row + 1), min(j + _SQUARE, len(matrix))):
                    matrix[column, row] = matrix[row, column]


# ---- points by themselves


@summing_entry
def mean_squares(x):
    """|x_i|²/d of points, (n, d)."""
    out = np.empty(len(x), x.dtype)
    for i in range(len(x)):
        total = like(x[0, 0], 0.0)
        for feature in range(x.shape[1]):
            total += x[i, feature] * x[i, feature]
        out[i] = total / x.shape[1]
    return out


@entry
def scales(squares, kind, weights, biases, r, q):
    """Scales and inverse scales at each activation, (depth, n), from the mean squares of the points."""
    for i in range(len(squares)):
        v = weights[0] * squares[i] + biases[0]
        for layer in range(len(r)):
            if kind == RELU:
                r[layer, i], q[layer, i] = relu_scales(v)
                v, _ = relu_variance(v)
            else:
                r[layer, i], q[layer, i] = erf_scales(v)
                v, _ = erf_variance(v)
            v = weights[layer + 1] * v + biases[layer + 1]


@inner
def _own(kind, v):
    if kind == RELU:
        value, slope = relu_variance(v)
        likeness, bend = relu_variance_slope(v)
    else:
        value, slope = erf_variance(v)
        likeness, bend = erf_variance_slope(v)
    return value, slope, likeness, bend


@entry
def diagonal(squares, kind, fixed, weights, biases, out):
    for i in range(len(squares)):
        v = weights[0] * squares[i] + biases[0]
        t = v
        for layer in range(1, len(weights)):
            value, _, likeness, _ = _own(kind, v)
            v = weights[layer] * value + biases[layer]
            t = weights[layer] * likeness * t + v if layer > fixed else v
        out[i] = t


@entry
def diagonal_back(squares, own, to_v, kind, fixed, weights, biases, to_weights, to_biases, to_squares):
    """From the cotangents of the diagonal and of the variances that activations read, (depth, n)."""
    depth = len(weights) - 1
    v, t = np.empty(depth + 1, squares.dtype), np.empty(depth + 1, squares.dtype)
    zero = like(weights[0], 0.0)
    for i in range(len(squares)):
        v[0] = t[0] = weights[0] * squares[i] + biases[0]
        for layer in range(1, depth + 1):
            value, _, likeness, _ = _own(kind, v[layer - 1])
            v[layer] = weights[layer] * value + biases[layer]
            t[layer] = weights[layer] * likeness * t[layer - 1] + v[layer] if layer > fixed else v[layer]
        g, gt = zero, own[i]
        for layer in range(depth, 0, -1):
            value, slope, likeness, bend = _own(kind, v[layer - 1])
            g += gt
            if layer <= fixed:
                gt = zero
            to_weights[layer] += g * value + gt * likeness * t[layer - 1]
            to_biases[layer] += g
            g = weights[layer] * (g * slope + gt * bend * t[layer - 1]) + to_v[layer - 1, i]
            gt = weights[layer] * likeness * gt
        g += gt
        to_weights[0] += g * squares[i]
        to_biases[0] += g
        to_squares[i] = weights[0] * g


# ---- strips


@entry
def gram(x, y, top, stop, same, ri, qi, rj, qj, kind, fixed, weights, biases, out):
    """Rows from `top` of K(x, y), or with `same` of K(x, x), with the columns that they mirror, into `out`. Returns
    the mean products of the points, (stop − top, columns)."""
    left = top if same else 0
    product = np.dot(x[top:stop], y[left:].T)
    share = like(x[0, 0], 1.0) / x.shape[1]
    c = np.empty(_BLOCK, x.dtype)
    for i in range(top, stop):
        mean = product[i - top]
        for j in range(len(mean)):
            mean[j] *= share
        for start in range(i + 1 if same else 0, len(y), _BLOCK):
            end = min(start + _BLOCK, len(y))
            k, given = out[i, start:end], mean[start - left : end - left]
            if fixed < len(ri):
                own = c[: end - start]
                _first(own, given, weights[0], biases[0])
                if fixed == 0:
                    k[:] = own
                for layer in range(len(ri)):
                    r, q, s, p = ri[layer, i], qi[layer, i], rj[layer, start:end], qj[layer, start:end]
                    if layer < fixed:
                        if kind == RELU:
                            _relu(own, r, q, s, p, weights[layer + 1], biases[layer + 1])
                        else:
                            _erf(own, r, q, s, p, weights[layer + 1], biases[layer + 1])
                        if layer + 1 == fixed:
                            k[:] = own
                    elif kind == RELU:
                        _relu_tangent(own, k, r, q, s, p, weights[layer + 1], biases[layer + 1])
                    else:
                        _erf_tangent(own, k, r, q, s, p, weights[layer + 1], biases[layer + 1])
            else:
                _first(k, given, weights[0], biases[0])
                for layer in range(len(ri)):
                    r, q, s, p = ri[layer, i], qi[layer, i], rj[layer, start:end], qj[layer, start:end]
                    if kind == RELU:
                        _relu(k, r, q, s, p, weights[layer + 1], biases[layer + 1])
                    else:
                        _erf(k, r, q, s, p, weights[layer + 1], biases[layer + 1])
    if same:
        _mirror(out, top, stop)
    return product


@entry
def pull(product, cotangent, top, r, q, kind, fixed, weights, biases, to_weights, to_biases, to_v, to_products):
    """Pull the cotangent of a strip of K(x, x) back, from its mean products: each block computed again with every
    layer kept, and walked back.

    cotangent: (n, n), symmetric. to_v: (depth, n), added to, as to_weights and to_biases. to_products:
    (n, n), both triangles of the strip filled in; of length 0 when it is not wanted.
    """
    depth, n = len(weights) - 1, len(cotangent)
    two = like(weights[0], 2.0)  # an entry above the diagonal stands for that below it, too
    c, t = np.empty((depth + 1, _BLOCK), product.dtype), np.empty((depth + 1, _BLOCK), product.dtype)
    g, gt = np.empty(_BLOCK, product.dtype), np.empty(_BLOCK, product.dtype)
    for i in range(top, top + len(product)):
        for start in range(i + 1, n, _BLOCK):
            end = min(start + _BLOCK, n)
            m = end - start
            given = product[i - top, start - top : end - top]
            _first(c[0, :m], given, weights[0], biases[0])
            t[0, :m] = c[0, :m]
            for layer in range(depth):
                a, b = r[layer, i], q[layer, i]
                d, e = r[layer, start:end], q[layer, start:end]
                own, weight, bias = c[layer + 1, :m], weights[layer + 1], biases[layer + 1]
                own[:] = c[layer, :m]
                if fixed <= layer:
                    t[layer + 1, :m] = t[layer, :m]
                    if kind == RELU:
                        _relu_tangent(own, t[layer + 1, :m], a, b, d, e, weight, bias)
                    else:
                        _erf_tangent(own, t[layer + 1, :m], a, b, d, e, weight, bias)
                elif layer + 1 < depth:  # of the last layer only what its activation reads is wanted
                    if kind == RELU:
                        _relu(own, a, b, d, e, weight, bias)
                    else:
                        _erf(own, a, b, d, e, weight, bias)
                if layer + 1 == fixed < depth:
                    t[layer + 1, :m] = own
            here, there = g[:m], gt[:m]
            if fixed < depth:
                here[:] = 0
                there[:] = two * cotangent[i, start:end]
            else:
                here[:] = two * cotangent[i, start:end]
            for layer in range(depth - 1, -1, -1):
                a, b = r[layer, i], q[layer, i]
                d, e = r[layer, start:end], q[layer, start:end]
                weight, to_vj = weights[layer + 1], to_v[layer, start:end]
                if layer + 1 == fixed < depth:
                    for j in range(m):
                        here[j] += there[j]
                if fixed <= layer:
                    if kind == RELU:
                        sums = _relu_tangent_back(here, there, c[layer, :m], t[layer, :m], a, b, d, e, weight, to_vj)
                    else:
                        sums = _erf_tangent_back(here, there, c[layer, :m], t[layer, :m], a, b, d, e, weight, to_vj)
                elif kind == RELU:
                    sums = _relu_back(here, c[layer, :m], a, b, d, e, weight, to_vj)
                else:
                    sums = _erf_back(here, c[layer, :m], a, b, d, e, weight, to_vj)
                to_weights[layer + 1] += sums[0]
                to_biases[layer + 1] += sums[1]
                to_v[layer, i] += sums[2]
            if fixed == 0 < depth:
                for j in range(m):
                    here[j] += there[j]
            to_weight, to_bias = _first_back(here, given)
            to_weights[0] += to_weight
            to_biases[0] += to_bias
            if len(to_products) > 0:
                for j in range(m):
                    to_products[i, start + j] = weights[0] * here[j]
    if len(to_products) > 0:
        _mirror(to_products, top, top + len(product))
