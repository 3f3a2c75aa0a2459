"""Maps of sixteen pairs of images at a time, through all layers of a network, in compiled loops.

Maps lie in cache as (height · width, 16): every vector register holds one position of sixteen pairs, a window is a
running sum of such vectors, and no map is written to main memory. The same loops carry the variance maps of sixteen
images. What an activation does to a pair of units is in `kernels.compiled.activations`; here a new one is a branch in
each of the walks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kfx.kernels.compiled.activations import (
    erf,
    erf_scales,
    erf_variance,
    like,
    relu,
    relu_scales,
    relu_variance,
)
from kfx.numerics.compilation import entry, inner, summing

LANES = 16  # a cache line of float32: one AVX-512 register, two or four of the smaller ones

# Kinds of steps.
CONV, RELU, ERF, ADD = range(4)
# A row of the table of steps: what it reads and how it goes, the maps that it may overwrite while only the value is
# wanted (OUT, IN, IN2) and those of its cotangents (G_OUT, G_IN, G_IN2), which may be new or be added to (FRESH).
KIND, SOURCE, SECOND, INDEX, IN_SIZE, OUT_SIZE, ROWS, COLUMNS, ROWS_BACK, COLUMNS_BACK = range(10)
OUT, IN, IN2, G_OUT, G_IN, G_IN2, FRESH, FRESH2 = range(10, 18)
FIELDS = 18
# A window along one axis: this head, then the first tap of each output, then the one after its last.
OUTPUTS, INPUTS, FIRST_TAP, TAPS, STEP, SLIDES, HEAD = range(7)


# ---- whole maps, flat: position · LANES + lane


def _over_pairs(activation: Any) -> tuple[Any, Any, Any]:
    """The loops over a map of sixteen pairs: image i by its numbers at each position, the sixteen j lane by lane."""

    @inner
    def value(out, c, ri, qi, rj, qj):
        for p in range(len(ri)):
            r, q = ri[p], qi[p]
            for lane in range(LANES):
                k = p * LANES + lane
                out[k], _, _, _ = activation(c[k], r, q, rj[k], qj[k])

    @inner
    def with_slopes(out, slopes, c, ri, qi, rj, qj):
        to_c, to_vi, to_vj = slopes[0], slopes[1], slopes[2]
        for p in range(len(ri)):
            r, q = ri[p], qi[p]
            for lane in range(LANES):
                k = p * LANES + lane
                out[k], to_c[k], to_vi[k], to_vj[k] = activation(c[k], r, q, rj[k], qj[k])

    @inner
    def along(out, first, second, c, to_first, to_second, ri, qi, rj, qj, first_i, second_i, first_j, second_j):
        for p in range(len(ri)):
            r, q, vi, wi = ri[p], qi[p], first_i[p], second_i[p]
            for lane in range(LANES):
                k = p * LANES + lane
                out[k], slope_c, slope_i, slope_j = activation(c[k], r, q, rj[k], qj[k])
                first[k] = slope_c * to_first[k] + slope_i * vi + slope_j * first_j[k]
                second[k] = slope_c * to_second[k] + slope_i * wi + slope_j * second_j[k]

    return value, with_slopes, along


@inner
def _activation_back(to_c, g, slopes, to_vi, to_vj, scratch):
    """From an activation's cotangent g to those of c and of the variances."""
    slope_c, slope_i, slope_j = slopes[0], slopes[1], slopes[2]
    for k in range(len(to_c)):
        to_c[k] += g[k] * slope_c[k]
        scratch[k] = g[k] * slope_i[k]
        to_vj[k] += g[k] * slope_j[k]
    _add_lanes(to_vi, scratch)


def _over_images(scales: Any, variance: Any) -> tuple[Any, Any, Any]:
    """The loops over variance maps of sixteen images."""

    @inner
    def prepare(r, q, v):
        for k in range(len(r)):
            r[k], q[k] = scales(v[k])

    @inner
    def forward(out, v):
        for k in range(len(out)):
            out[k], _ = variance(v[k])

    @inner
    def backward(to_v, g, v):
        for k in range(len(to_v)):
            _, slope = variance(v[k])
            to_v[k] += g[k] * slope

    return prepare, forward, backward


@summing
def _add_lanes(out, source):
    for p in range(len(out)):
        row = source[p * LANES : (p + 1) * LANES]
        total = like(source[0], 0.0)
        for lane in range(LANES):
            total += row[lane]
        out[p] += total


@inner
def _clear(out):
    for k in range(len(out)):
        out[k] = 0


@inner
def _add(out, source):
    for k in range(len(out)):
        out[k] += source[k]


@inner
def _add_times(out, source, factor):
    for k in range(len(out)):
        out[k] += factor * source[k]


@inner
def _subtract(out, source):
    for k in range(len(out)):
        out[k] -= source[k]


@inner
def _slide(out, entering, leaving):
    for k in range(len(out)):
        out[k] += entering[k] - leaving[k]


@inner
def _sum(out, a, b):
    for k in range(len(out)):
        out[k] = a[k] + b[k]


@inner
def _mix(out, factor, a, other_factor, b):
    for k in range(len(out)):
        out[k] = factor * a[k] + other_factor * b[k]


@summing
def _total(g):
    total = like(g[0], 0.0)
    for k in range(len(g)):
        total += g[k]
    return np.float64(total)


@summing
def _spread(to_source, windows, source, weight):
    """to_source += weight · windows; and ⟨windows, source⟩."""
    total = like(weight, 0.0)
    for k in range(len(source)):
        total += windows[k] * source[k]
        to_source[k] += weight * windows[k]
    return np.float64(total)


@inner
def _window(out, source, table, rows, columns, strip, sums, scale, shift, sliding):
    """out = shift + scale · B_h source B_wᵀ, one row of outputs after another: a window of ones is separable.

    rows, columns: where in `table` the windows along the two axes stand. strip, sums: one row each.
    sliding: running sums where windows overlap. Without, each is summed afresh: exactly 0 where all its taps are.
    """
    height, width = table[rows + OUTPUTS], table[columns + OUTPUTS]
    first, taps, step = table[columns + FIRST_TAP] * LANES, table[columns + TAPS] * LANES, table[columns + STEP]
    n, m = table[columns + INPUTS] * LANES, width * LANES
    alike = table[columns + SLIDES] == 1
    margin = max(-first, 0) if alike else 0  # zeros around the row, so that all windows along it are alike
    left = first + margin
    if alike:
        _clear(strip[: max(left + m - LANES + taps, margin + n)])
    column = strip[margin : margin + n]
    begin = end = 0
    for o in range(height):
        low, high = table[rows + HEAD + o], table[rows + HEAD + height + o]
        if sliding and table[rows + SLIDES] == 1 and low < min(end, high):
            while begin < low and end < high:
                _slide(column, source[end * n : (end + 1) * n], source[begin * n : (begin + 1) * n])
                begin, end = begin + 1, end + 1
            while end < high:
                _add(column, source[end * n : (end + 1) * n])
                end += 1
            while begin < low:
                _subtract(column, source[begin * n : (begin + 1) * n])
                begin += 1
        else:
            _clear(column)
            for t in range(low, high, table[rows + STEP]):
                _add(column, source[t * n : (t + 1) * n])
            begin, end = low, max(low, high)
        if alike and sliding:
            _clear(sums[:LANES])
            for k in range(left, left + taps, LANES):
                _add(sums[:LANES], strip[k : k + LANES])
            entering, leaving = strip[left + taps - LANES :], strip[left:]
            for k in range(LANES, m):
                sums[k] = sums[k - LANES] + (entering[k] - leaving[k - LANES])
        elif alike:
            _clear(sums[:m])
            for k in range(left, left + taps, LANES):
                _add(sums[:m], strip[k : k + m])
        else:
            _clear(sums[:m])
            for x in range(width):
                low, high = table[columns + HEAD + x], table[columns + HEAD + width + x]
                for t in range(low, high, step):
                    _add(sums[x * LANES : (x + 1) * LANES], strip[t * LANES : (t + 1) * LANES])
        row = out[o * m : (o + 1) * m]
        for k in range(m):
            row[k] = shift + scale * sums[k]


_relu, _relu_slopes, _relu_along = _over_pairs(relu)
_erf, _erf_slopes, _erf_along = _over_pairs(erf)
_relu_prepare, _relu_image, _relu_image_back = _over_images(relu_scales, relu_variance)
_erf_prepare, _erf_image, _erf_image_back = _over_images(erf_scales, erf_variance)


# ---- walks through the program


@inner
def _walk_pairs(steps, table, weights, biases, maps, slopes, ri, qi, rj, qj, strip, sums):
    """From the products in maps[0] to the covariances, in the map whose number is returned.

    slopes: (activations, 3, positions · LANES), filled in; then map k + 1 is step k's. Of length 0 where the value
    alone is wanted; then maps take the places of those not needed any more.
    """
    keep = len(slopes) > 0
    last = 0
    for s in range(len(steps)):
        step = steps[s]
        at, n = step[INDEX], step[OUT_SIZE]
        last = s + 1 if keep else step[OUT]
        out, source = maps[last, : n * LANES], maps[step[SOURCE] if keep else step[IN]]
        if step[KIND] == CONV:
            _window(out, source, table, step[ROWS], step[COLUMNS], strip, sums, weights[at], biases[at], True)
        elif step[KIND] == ADD:
            _sum(out, source, maps[step[SECOND] if keep else step[IN2]])
        elif step[KIND] == RELU:
            if keep:
                _relu_slopes(out, slopes[at], source, ri[at, :n], qi[at, :n], rj[at], qj[at])
            else:
                _relu(out, source, ri[at, :n], qi[at, :n], rj[at], qj[at])
        elif step[KIND] == ERF:
            if keep:
                _erf_slopes(out, slopes[at], source, ri[at, :n], qi[at, :n], rj[at], qj[at])
            else:
                _erf(out, source, ri[at, :n], qi[at, :n], rj[at], qj[at])
    return last


@inner
def _walk_pairs_back(
    steps, table, weights, maps, slopes, cotangents, scratch, to_vi, to_vj, to_weights, to_biases, strip, sums
):
    """From the cotangent of the last map to all that the maps depend on; the products' is returned by its number."""
    zero, one = like(weights[0], 0.0), like(weights[0], 1.0)
    for s in range(len(steps) - 1, -1, -1):
        step = steps[s]
        at, n = step[INDEX], step[IN_SIZE]
        g, to_source = cotangents[step[G_OUT]], cotangents[step[G_IN], : n * LANES]
        if step[FRESH]:
            _clear(to_source)
        if step[KIND] == CONV:
            to_biases[at] += _total(g[: step[OUT_SIZE] * LANES])
            _window(scratch, g, table, step[ROWS_BACK], step[COLUMNS_BACK], strip, sums, one, zero, True)
            to_weights[at] += _spread(to_source, scratch, maps[step[SOURCE], : n * LANES], weights[at])
        elif step[KIND] == ADD:
            _add(to_source, g)
            to_second = cotangents[step[G_IN2], : n * LANES]
            if step[FRESH2]:
                _clear(to_second)
            _add(to_second, g)
        else:
            _activation_back(to_source, g, slopes[at], to_vi[at, :n], to_vj[at], scratch)
    return steps[0, G_IN]


@inner
def _walk_pairs_along(
    steps, table, weights, biases, along_weights, along_biases, maps, tangents, scratch,
    ri, qi, rj, qj, along_vi, along_vj, strip, sums
):  # fmt: skip
    """`_walk_pairs`, and beside the maps their tangents along two directions in the space of weights and biases."""
    one = like(weights[0], 1.0)
    last = 0
    for t in range(2):
        _clear(tangents[t, 0])
    for s in range(len(steps)):
        step = steps[s]
        at, n, last = step[INDEX], step[OUT_SIZE], step[OUT]
        out, source = maps[last, : n * LANES], maps[step[IN]]
        if step[KIND] == CONV:
            _window(out, source, table, step[ROWS], step[COLUMNS], strip, sums, weights[at], biases[at], True)
            for t in range(2):
                mixed = scratch[: step[IN_SIZE] * LANES]
                _mix(mixed, along_weights[t, at], source, weights[at], tangents[t, step[IN]])
                shift = along_biases[t, at]
                _window(tangents[t, last], mixed, table, step[ROWS], step[COLUMNS], strip, sums, one, shift, True)
        elif step[KIND] == ADD:
            _sum(out, source, maps[step[IN2]])
            for t in range(2):
                _sum(tangents[t, last, : n * LANES], tangents[t, step[IN]], tangents[t, step[IN2]])
        else:
            first, second = tangents[0, last], tangents[1, last]
            to_first, to_second = tangents[0, step[IN]], tangents[1, step[IN]]
            vi, wi, vj, wj = along_vi[2 * at], along_vi[2 * at + 1], along_vj[2 * at], along_vj[2 * at + 1]
            if step[KIND] == RELU:
                _relu_along(
                    out, first, second, source, to_first, to_second, ri[at, :n], qi[at, :n], rj[at], qj[at],
                    vi, wi, vj, wj,
                )  # fmt: skip
            elif step[KIND] == ERF:
                _erf_along(
                    out, first, second, source, to_first, to_second, ri[at, :n], qi[at, :n], rj[at], qj[at],
                    vi, wi, vj, wj,
                )  # fmt: skip
    return last


@inner
def _walk_images(steps, table, weights, biases, v, r, q, strip, sums):
    """From the mean squares in v[0] to the variance maps v[1:] and the scales r, q at each activation."""
    for s in range(len(steps)):
        step = steps[s]
        at, size = step[INDEX], step[OUT_SIZE] * LANES
        out, source = v[s + 1, :size], v[step[SOURCE]]
        if step[KIND] == CONV:
            _window(out, source, table, step[ROWS], step[COLUMNS], strip, sums, weights[at], biases[at], False)
        elif step[KIND] == RELU:
            _relu_prepare(r[at, :size], q[at, :size], source)
            _relu_image(out, source)
        elif step[KIND] == ERF:
            _erf_prepare(r[at, :size], q[at, :size], source)
            _erf_image(out, source)
        else:
            _sum(out, source, v[step[SECOND]])


@inner
def _walk_images_along(steps, table, weights, along_weights, along_biases, v, tangents, scratch, along_v, strip, sums):
    """The tangents of the variance maps v along two directions; along_v gets those at each activation."""
    one = like(weights[0], 1.0)
    for t in range(2):
        each = tangents[t]
        _clear(each[0])
        for s in range(len(steps)):
            step = steps[s]
            at, size = step[INDEX], step[OUT_SIZE] * LANES
            out, source = each[s + 1, :size], each[step[SOURCE]]
            if step[KIND] == CONV:
                mixed = scratch[: step[IN_SIZE] * LANES]
                _mix(mixed, along_weights[t, at], v[step[SOURCE]], weights[at], source)
                shift = along_biases[t, at]
                _window(out, mixed, table, step[ROWS], step[COLUMNS], strip, sums, one, shift, False)
            elif step[KIND] == ADD:
                _sum(out, source, each[step[SECOND]])
            else:
                along_v[2 * at + t, :size] = source[:size]
                _clear(out)
                if step[KIND] == RELU:
                    _relu_image_back(out, source, v[step[SOURCE]])
                elif step[KIND] == ERF:
                    _erf_image_back(out, source, v[step[SOURCE]])


@inner
def _walk_images_back(steps, table, weights, v, g, scratch, to_v, to_weights, to_biases, strip, sums):
    """From the cotangents to_v of the variances at each activation, and the last map's in g, to that in g[0]."""
    zero, one = like(weights[0], 0.0), like(weights[0], 1.0)
    for s in range(len(steps) - 1, -1, -1):
        step = steps[s]
        at, size = step[INDEX], step[IN_SIZE] * LANES
        out, to_source, source = g[s + 1, : step[OUT_SIZE] * LANES], g[step[SOURCE], :size], v[step[SOURCE], :size]
        if step[KIND] == CONV:
            to_biases[at] += _total(out)
            _window(scratch, out, table, step[ROWS_BACK], step[COLUMNS_BACK], strip, sums, one, zero, False)
            to_weights[at] += _spread(to_source, scratch, source, weights[at])
        elif step[KIND] == RELU:
            _relu_image_back(to_source, out, source)
            _add(to_source, to_v[at])
        elif step[KIND] == ERF:
            _erf_image_back(to_source, out, source)
            _add(to_source, to_v[at])
        else:
            _add(to_source, out)
            _add(g[step[SECOND], :size], out)


# ---- sixteen images side by side


@inner
def _side_by_side(lanes, x, start):
    """lanes[channel, pixel · LANES + lane] = x[start + lane, channel, pixel]; 0 beyond the last image."""
    _, channels, pixels = x.shape
    for c in range(channels):
        for block in range(0, pixels, LANES):  # a square at a time stays in the nearest cache
            for lane in range(LANES):
                for p in range(block, min(block + LANES, pixels)):
                    lanes[c, p * LANES + lane] = x[start + lane, c, p] if start + lane < len(x) else 0


@inner
def _mean_squares(out, lanes):
    channels, size = lanes.shape
    share = like(out[0], 1.0) / like(out[0], channels)
    _clear(out[:size])
    for c in range(channels):
        for k in range(size):
            out[k] += share * lanes[c, k] * lanes[c, k]


@inner
def _products(out, image, lanes):
    channels, pixels = image.shape
    share = like(out[0], 1.0) / like(out[0], channels)
    _clear(out[: pixels * LANES])
    for c in range(channels):
        for p in range(pixels):
            row = out[p * LANES : (p + 1) * LANES]
            _add_times(row, lanes[c, p * LANES : (p + 1) * LANES], share * image[c, p])


@inner
def _products_back(g, image, lanes, to_image, to_lanes, scratch):
    channels, pixels = image.shape
    share = like(g[0], 1.0) / like(g[0], channels)
    for c in range(channels):
        for p in range(pixels):
            row = to_lanes[c, p * LANES : (p + 1) * LANES]
            _add_times(row, g[p * LANES : (p + 1) * LANES], share * image[c, p])
        for k in range(pixels * LANES):
            scratch[k] = share * lanes[c, k] * g[k]
        _add_lanes(to_image[c], scratch)


@inner
def _squares_back(g, lanes, to_lanes):
    channels, size = lanes.shape
    share = like(g[0], 2.0) / like(g[0], channels)
    for c in range(channels):
        for k in range(size):
            to_lanes[c, k] += share * lanes[c, k] * g[k]


@inner
def _apart(out, lanes, start):
    """Add lanes to the images that they stand for: the inverse of `_side_by_side`."""
    for c in range(lanes.shape[0]):
        for block in range(0, out.shape[2], LANES):
            for lane in range(min(LANES, len(out) - start)):
                for p in range(block, min(block + LANES, out.shape[2])):
                    out[start + lane, c, p] += lanes[c, p * LANES + lane]


@inner
def _room(x, steps, table, activations):
    """Memory for sixteen images side by side, what `_walk_images` finds of them, and a window."""
    size, row = table[0] * LANES, table[1] * LANES
    lanes, v = np.empty((x.shape[1], x.shape[2] * LANES), x.dtype), np.empty((len(steps) + 1, size), x.dtype)
    r, q = np.empty((activations, size), x.dtype), np.empty((activations, size), x.dtype)
    return lanes, v, r, q, np.empty(row, x.dtype), np.empty(row, x.dtype)


@inner
def _prepare(x, start, lanes, steps, table, weights, biases, v, r, q, strip, sums):
    """Put sixteen images side by side, and walk their variance maps."""
    _side_by_side(lanes, x, start)
    _mean_squares(v[0], lanes)
    _walk_images(steps, table, weights, biases, v, r, q, strip, sums)


@inner
def _images_one_by_one(x, steps, table, weights, biases, activations, ri, qi):
    """The scales (image, activation, position) of the images of one side of a tile."""
    lanes, v, r, q, strip, sums = _room(x, steps, table, activations)
    for start in range(0, len(x), LANES):
        _prepare(x, start, lanes, steps, table, weights, biases, v, r, q, strip, sums)
        _apart(ri, r, start)
        _apart(qi, q, start)


# ---- what the engine calls, one tile of the Gram matrix at a time


@entry
def diagonal(x, steps, table, weights, biases, activations, out):
    """K(x_i, x_i) of images x, (n, channels, pixels), into `out`."""
    lanes, v, r, q, strip, sums = _room(x, steps, table, activations)
    for start in range(0, len(x), LANES):
        _prepare(x, start, lanes, steps, table, weights, biases, v, r, q, strip, sums)
        for lane in range(min(LANES, len(x) - start)):
            out[start + lane] = v[len(steps), lane]


@entry
def gram(x, y, same, steps, table, weights, biases, activations, maps, out):
    """K(x, y) of a tile into `out`, (len(x), len(y)); with `same` only what lies above the diagonal.

    `maps`: how many are alive at once."""
    n, largest = len(x), table[0]
    ri, qi = np.zeros((n, activations, largest), x.dtype), np.zeros((n, activations, largest), x.dtype)
    _images_one_by_one(x, steps, table, weights, biases, activations, ri, qi)
    lanes, v, rj, qj, strip, sums = _room(x, steps, table, activations)
    c, none = np.empty((maps, largest * LANES), x.dtype), np.empty((0, 3, 0), x.dtype)
    for start in range(0, len(y), LANES):
        stop = min(start + LANES, len(y))
        _prepare(y, start, lanes, steps, table, weights, biases, v, rj, qj, strip, sums)
        for i in range(min(n, stop - 1) if same else n):
            _products(c[0], x[i], lanes)
            last = _walk_pairs(steps, table, weights, biases, c, none, ri[i], qi[i], rj, qj, strip, sums)
            for j in range(max(start, i + 1) if same else start, stop):
                out[i, j] = c[last, j - start]


@entry
def gram_along(x, y, same, steps, table, weights, biases, activations, maps, along_weights, along_biases, out, along):
    """`gram`, and its derivatives along two directions in the space of weights and biases, (2, convolutions),
    into `along`, (2, len(x), len(y))."""
    n, largest = len(x), table[0]
    ri, qi = np.zeros((n, activations, largest), x.dtype), np.zeros((n, activations, largest), x.dtype)
    along_vi = np.zeros((n, 2 * activations, largest), x.dtype)
    lanes, v, rj, qj, strip, sums = _room(x, steps, table, activations)
    tangents = np.empty((2, len(steps) + 1, largest * LANES), x.dtype)
    along_vj = np.empty((2 * activations, largest * LANES), x.dtype)
    scratch = np.empty(largest * LANES, x.dtype)
    c = np.empty((maps, largest * LANES), x.dtype)
    for start in range(0, n, LANES):
        _prepare(x, start, lanes, steps, table, weights, biases, v, rj, qj, strip, sums)
        _walk_images_along(
            steps, table, weights, along_weights, along_biases, v, tangents, scratch, along_vj, strip, sums
        )
        _apart(ri, rj, start)
        _apart(qi, qj, start)
        _apart(along_vi, along_vj, start)
        if same:
            for i in range(start, min(start + LANES, n)):
                for t in range(2):
                    along[t, i, i] = tangents[t, len(steps), i - start]
    for start in range(0, len(y), LANES):
        stop = min(start + LANES, len(y))
        _prepare(y, start, lanes, steps, table, weights, biases, v, rj, qj, strip, sums)
        _walk_images_along(
            steps, table, weights, along_weights, along_biases, v, tangents, scratch, along_vj, strip, sums
        )
        for i in range(min(n, stop - 1) if same else n):
            _products(c[0], x[i], lanes)
            last = _walk_pairs_along(
                steps, table, weights, biases, along_weights, along_biases, c, tangents, scratch,
                ri[i], qi[i], rj, qj, along_vi[i], along_vj, strip, sums
            )  # fmt: skip
            for j in range(max(start, i + 1) if same else start, stop):
                out[i, j] = c[last, j - start]
                for t in range(2):
                    along[t, i, j] = tangents[t, last, j - start]


@entry
def pull(
    x, y, cotangent, own, same, steps, table, weights, biases, activations, maps, to_weights, to_biases, to_x, to_y
):
    """Pull the cotangent of a tile back: computed again with every map kept, walked back, dropped.

    cotangent: (len(x), len(y)). own: of the variances K(x_i, x_i), with `same`, when only what lies above the
    diagonal is looked at. to_x, to_y: added to; of length 0 when they are not wanted. `maps`: cotangents alive at once.
    """
    n, largest, inputs = len(x), table[0], len(to_x) > 0
    ri, qi = np.zeros((n, activations, largest), x.dtype), np.zeros((n, activations, largest), x.dtype)
    _images_one_by_one(x, steps, table, weights, biases, activations, ri, qi)
    to_vi = np.zeros((n, activations, largest), x.dtype)
    to_vj = np.empty((activations, largest * LANES), x.dtype)
    lanes, v, rj, qj, strip, sums = _room(x, steps, table, activations)
    to_lanes, gv = np.empty_like(lanes), np.empty_like(v)
    c, g = np.empty((len(steps) + 1, largest * LANES), x.dtype), np.empty((maps, largest * LANES), x.dtype)
    slopes, scratch = np.empty((activations, 3, largest * LANES), x.dtype), np.empty(largest * LANES, x.dtype)
    for start in range(0, len(y), LANES):
        stop = min(start + LANES, len(y))
        _prepare(y, start, lanes, steps, table, weights, biases, v, rj, qj, strip, sums)
        to_vj[:] = 0
        to_lanes[:] = 0
        for i in range(min(n, stop - 1) if same else n):
            _products(c[0], x[i], lanes)
            _walk_pairs(steps, table, weights, biases, c, slopes, ri[i], qi[i], rj, qj, strip, sums)
            last = g[steps[len(steps) - 1, G_OUT]]
            for lane in range(LANES):
                j = start + lane
                last[lane] = cotangent[i, j] if j < stop and not (same and j <= i) else 0
            first = _walk_pairs_back(
                steps, table, weights, c, slopes, g, scratch, to_vi[i], to_vj, to_weights, to_biases, strip, sums,
            )  # fmt: skip
            if inputs:
                _products_back(g[first], x[i], lanes, to_x[i], to_lanes, scratch)
        gv[:] = 0
        _walk_images_back(steps, table, weights, v, gv, scratch, to_vj, to_weights, to_biases, strip, sums)
        if inputs:
            _squares_back(gv[0], lanes, to_lanes)
            _apart(to_y, to_lanes, start)
    for start in range(0, n, LANES):
        _prepare(x, start, lanes, steps, table, weights, biases, v, rj, qj, strip, sums)
        _side_by_side(to_vj, to_vi, start)
        to_lanes[:] = 0
        gv[:] = 0
        if same:
            for lane in range(min(LANES, n - start)):
                gv[len(steps), lane] = own[start + lane]
        _walk_images_back(steps, table, weights, v, gv, scratch, to_vj, to_weights, to_biases, strip, sums)
        if inputs:
            _squares_back(gv[0], lanes, to_lanes)
            _apart(to_x, to_lanes, start)
