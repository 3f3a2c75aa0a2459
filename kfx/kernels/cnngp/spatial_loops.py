"""Spatial covariances of one pair of images through all layers of a network with pooling, in compiled loops.

A map holds K[p₁, q₁, p₂, q₂] = Cov(x at (p₁, p₂), z at (q₁, q₂)), where the block of a pair of rows (p₁, q₁) is
contiguous and stays in the nearest cache. A convolution shifts p and q together, so it sums blocks along a diagonal,
and then entries along the diagonals of a block; pooling sums over windows of p and of q. An activation is applied to a
block as soon as it is there. The tangent kernel Θ goes through the same layers beside K.

A convolution of stride 1 does not mix shifts q₁ − p₁. So a group of them is walked shift by shift, and what they pass
on to each other is not a map, but its blocks of one shift, which stay in cache.

The rows of a block end with a zero, so that a diagonal that leaves the block meets zeros, and every loop over a block
is one flat loop.

The variances that activations read are the diagonal of an image's covariance with itself. These own covariances are
walked once for each image; a pair of images reads scales from them.
"""

from __future__ import annotations

import numpy as np

from kfx.kernels.compiled.activations import (
    erf,
    erf_bend,
    erf_scales,
    like,
    relu,
    relu_bend,
    relu_scales,
)
from kfx.numerics.compilation import entry, inner, on_views, summing

# Kinds of steps, and activations that follow them.
CONV, POOL, COPY, ADD = range(4)
NONE, RELU, ERF = range(3)
# A row of the table of steps: where it writes and reads blocks, where what is kept of it stands, where its variances
# stand, the maps of cotangents, and along each axis its geometry and that of the adjoint of a convolution of stride 1.
KIND, ACTIVATION, INDEX, KEPT, SCALES, G_OUT, G_IN, G_IN2, FRESH, FRESH2 = range(10)
OUT, IN, IN2 = 10, 13, 16
ROWS, COLUMNS, ROWS_BACK, COLUMNS_BACK = 19, 25, 31, 37
INPUTS, OUTPUTS, TAPS, FIRST, STRIDE, DILATION = range(6)
FIELDS = 43
# Of OUT, IN and IN2: block (i, j) begins at PLACE + i · DOWN + j · ACROSS; ACROSS is 0 where one shift is held.
PLACE, DOWN, ACROSS = range(3)
NOT_KEPT = IMAGES = -1
# Pairs of a tile: all, those above its diagonal, or images with themselves.
ALL, ABOVE, OWN = range(3)


# ---- linear layers, one block of the output at a time


@on_views
def _add_block(out, source, fresh):
    if fresh:
        for k in range(len(out)):
            out[k] = source[k]
    else:
        for k in range(len(out)):
            out[k] += source[k]


@on_views
def _clear(out):
    for k in range(len(out)):
        out[k] = 0


@on_views
def _affine(out, weight, bias):
    for k in range(len(out)):
        out[k] = bias + weight * out[k]


@on_views
def _add_times(out, factor, source):
    for k in range(len(out)):
        out[k] += factor * source[k]


@on_views
def _clear_ends(block, n):
    """Restore the zeros at the ends of a block's rows."""
    for i in range(n):
        block[i * (n + 1) + n] = 0


@on_views
def _add_products(line, x, z, i, j, n):
    """Add to a line the products, their mean over channels, of row i of image x and row j of image z."""
    share = like(x[0, 0], 1.0) / like(x[0, 0], len(x))
    for channel in range(len(x)):
        other = z[channel, j * n : (j + 1) * n]
        for p in range(n):
            row, factor = line[p * (n + 1) : p * (n + 1) + n], share * x[channel, i * n + p]
            for k in range(n):
                row[k] += factor * other[k]


@on_views
def _three_products_of_colours(line, x, z, i, j, step, n):
    """The sum of the products of rows i + t step of image x and j + t step of image z, t = 0, 1, 2; three channels."""
    share = like(x[0, 0], 1.0) / like(x[0, 0], 3)
    at, to = i * n, j * n
    a, b, c = z[0, to : to + n], z[1, to : to + n], z[2, to : to + n]
    d, e, f = z[0, to + step * n :], z[1, to + step * n :], z[2, to + step * n :]
    g, h, m = z[0, to + 2 * step * n :], z[1, to + 2 * step * n :], z[2, to + 2 * step * n :]
    for p in range(n):
        row = line[p * (n + 1) : p * (n + 1) + n]
        first, second, third = at + p, at + step * n + p, at + 2 * step * n + p
        xa, xb, xc = share * x[0, first], share * x[1, first], share * x[2, first]
        xd, xe, xf = share * x[0, second], share * x[1, second], share * x[2, second]
        xg, xh, xm = share * x[0, third], share * x[1, third], share * x[2, third]
        for k in range(n):
            one = xa * a[k] + xb * b[k] + xc * c[k]
            two = xd * d[k] + xe * e[k] + xf * f[k]
            row[k] = one + two + (xg * g[k] + xh * h[k] + xm * m[k])


@on_views
def _sum_of_blocks(line, source, down, across, x, z, kind, o, u, rows, size, n):
    """The sum of the blocks that a layer's windows around rows (o, u) take: along a diagonal, or for pooling all.

    source: blocks, of which (i, j) begins at i · down + j · across; of length 0 for the products of the images x and z.
    """
    height, taps = rows[INPUTS], rows[TAPS]
    top, left = rows[STRIDE] * o + rows[FIRST], rows[STRIDE] * u + rows[FIRST]
    if kind != POOL and taps == 3 and min(top, left) >= 0 and max(top, left) + 2 * rows[DILATION] < height:
        if len(source) > 0:
            a = top * down + left * across
            step = rows[DILATION] * (down + across)
            one, two, three = source[a : a + size], source[a + step :], source[a + 2 * step :]
            for k in range(size):
                line[k] = one[k] + two[k] + three[k]
            return
        if len(x) == 3:
            _three_products_of_colours(line, x, z, top, left, rows[DILATION], n)
            return
    fresh = True
    if len(source) == 0:
        _clear(line[:size])
    for t in range(taps):
        i = top + t * rows[DILATION]
        for other in range(0 if kind == POOL else t, taps if kind == POOL else t + 1):
            j = left + other * rows[DILATION]
            if 0 <= i < height and 0 <= j < height:
                if len(source) > 0:
                    start = i * down + j * across
                    _add_block(line[:size], source[start : start + size], fresh)
                else:
                    _add_products(line, x, z, i, j, n)
                fresh = False
    if fresh:
        _clear(line[:size])


@on_views
def _along_diagonals(out, line, n, columns, weight, bias, guard):
    """out[o, u] = bias + weight Σ_t block[s o + f + t d, s u + f + t d]; the block stands in `line` from `guard` on."""
    outputs, taps, first = columns[OUTPUTS], columns[TAPS], columns[FIRST]
    stride, dilation, side = columns[STRIDE], columns[DILATION], n + 1
    if taps == 3 and first == -1 and stride == 1 and dilation == 1 and outputs == n:
        a, b, c = line[guard - side - 1 :], line[guard:], line[guard + side + 1 :]
        for k in range(len(out)):
            out[k] = bias + weight * (a[k] + b[k] + c[k])
        return
    _clear(out)
    for o in range(outputs):
        row = out[o * (outputs + 1) : o * (outputs + 1) + outputs]
        for t in range(taps):
            i, shift = stride * o + first + t * dilation, first + t * dilation
            if 0 <= i < n:
                low = max(0, (stride - 1 - shift) // stride)
                high = min(outputs, (n - 1 - shift) // stride + 1)
                source = line[guard + i * side :]
                for u in range(low, high):
                    row[u] += source[stride * u + shift]
    for k in range(len(out)):
        out[k] = bias + weight * out[k]


@on_views
def _over_windows(out, line, n, columns, share, guard):
    """out[o, u] = share Σ_t Σ_t' block[s o + t, s u + t']; the block stands in `line` from `guard` on."""
    outputs, taps, stride, side = columns[OUTPUTS], columns[TAPS], columns[STRIDE], n + 1
    for o in range(outputs):
        for u in range(outputs):
            total = like(line[0], 0.0)
            for t in range(taps):
                row = line[guard + (stride * o + t) * side + stride * u :]
                for other in range(taps):
                    total += row[other]
            out[o * (outputs + 1) + u] = share * total


@on_views
def _block(out, maps, x, z, step, o, u, weight, bias, line):
    """The block (o, u) that a step makes before its activation. maps: memory of all maps of K, or of one beside it."""
    rows, columns = step[ROWS:COLUMNS], step[COLUMNS:]
    n = columns[INPUTS]
    size, guard = n * (n + 1), n + 2
    for side in range(2 if step[KIND] == ADD else 1):
        at = step[IN2:] if side else step[IN:]
        source = maps[:0] if at[PLACE] == IMAGES else maps[at[PLACE] :]
        _sum_of_blocks(line[guard:], source, at[DOWN], at[ACROSS], x, z, step[KIND], o, u, rows, size, n)
        if step[KIND] == CONV:
            _along_diagonals(out, line, n, columns, weight, bias, guard)
        elif step[KIND] == POOL:
            area = rows[TAPS] * columns[TAPS]
            _over_windows(out, line, n, columns, like(line[0], 1.0) / like(line[0], area * area), guard)
        else:
            _add_block(out, line[guard:], side == 0)
    _clear_ends(out, columns[OUTPUTS])


@on_views
def _blocks_along(out, out_a, out_b, maps, x, z, step, o, u, weight, bias, along_weights, along_biases, line):
    """The block (o, u) that a step makes before its activation, and its derivatives along two directions a and b."""
    one, zero, at = like(weight, 1.0), like(weight, 0.0), step[INDEX]
    _block(out, maps[0], x, z, step, o, u, one, zero, line)
    if step[KIND] != ADD and step[IN + PLACE] == IMAGES:
        _clear(out_a)
        _clear(out_b)
    else:
        _block(out_a, maps[1], x[:0], z[:0], step, o, u, weight, zero, line)
        _block(out_b, maps[2], x[:0], z[:0], step, o, u, weight, zero, line)
    if step[KIND] == CONV:
        weight_a, bias_a = along_weights[0, at], along_biases[0, at]
        weight_b, bias_b = along_weights[1, at], along_biases[1, at]
        for k in range(len(out)):
            total = out[k]
            out[k] = bias + weight * total
            out_a[k] += bias_a + weight_a * total
            out_b[k] += bias_b + weight_b * total
        for side in (out, out_a, out_b):
            _clear_ends(side, step[COLUMNS + OUTPUTS])


@on_views
def _scatter_block(g, to_source, o, u, kind, weight, rows, columns, line):
    """Add to the cotangents of a layer's input what the cotangent g of its block (o, u) gives."""
    height, n, outputs = rows[INPUTS], columns[INPUTS], columns[OUTPUTS]
    taps, first, stride, dilation = columns[TAPS], columns[FIRST], columns[STRIDE], columns[DILATION]
    size = n * (n + 1)
    _clear(line[:size])
    for a in range(outputs):
        for b in range(outputs):
            value = weight * g[a * (outputs + 1) + b]
            for t in range(taps):
                i = stride * a + first + t * dilation
                for other in range(0 if kind == POOL else t, taps if kind == POOL else t + 1):
                    j = stride * b + first + other * dilation
                    if 0 <= i < n and 0 <= j < n:
                        line[i * (n + 1) + j] += value
    for t in range(rows[TAPS]):
        i = rows[STRIDE] * o + rows[FIRST] + t * rows[DILATION]
        for other in range(0 if kind == POOL else t, rows[TAPS] if kind == POOL else t + 1):
            j = rows[STRIDE] * u + rows[FIRST] + other * rows[DILATION]
            if 0 <= i < height and 0 <= j < height:
                start = (i * height + j) * size
                _add_block(to_source[start : start + size], line[:size], False)


@on_views
def _linear_back(g, to_source, step, fresh, weight, line, block, none):
    """Add to `to_source` the adjoint of a step's linear layer at g; with `fresh` overwrite."""
    rows, columns = step[ROWS:COLUMNS], step[COLUMNS:]
    height, n, outputs = rows[INPUTS], columns[INPUTS], columns[OUTPUTS]
    size, made = n * (n + 1), outputs * (outputs + 1)
    if step[KIND] == CONV and rows[STRIDE] == 1 and columns[STRIDE] == 1:
        back_rows, back_columns, guard = step[ROWS_BACK:COLUMNS_BACK], step[COLUMNS_BACK:], outputs + 2
        _clear(line)
        for shift in range(1 - height, height):
            for i in range(max(0, -shift), min(height, height - shift)):
                start = (i * height + i + shift) * size
                out = to_source[start : start + size] if fresh else block[:size]
                _sum_of_blocks(
                    line[guard:], g, back_rows[INPUTS] * made, made, none, none, step[KIND], i, i + shift, back_rows,
                    made, outputs,
                )  # fmt: skip
                _along_diagonals(out, line, outputs, back_columns, weight, like(weight, 0.0), guard)
                _clear_ends(out, n)
                if not fresh:
                    _add_block(to_source[start : start + size], out, False)
        return
    count = height * height * size
    if step[KIND] == COPY or step[KIND] == ADD:
        _add_block(to_source[:count], g[:count], fresh)
        return
    if fresh:
        _clear(to_source[:count])
    m, area = rows[OUTPUTS], rows[TAPS] * columns[TAPS]
    factor = weight if step[KIND] == CONV else like(weight, 1.0) / like(weight, area * area)
    for o in range(m):
        for u in range(m):
            start = (o * m + u) * made
            _scatter_block(g[start : start + made], to_source, o, u, step[KIND], factor, rows, columns, line)


# ---- activations, one block at a time


@on_views
def _spread_scales(r, q, own_rows, m, n, scale, inverse):
    """Scales of an image, position by position, as blocks: along the rows of a block, or along its columns."""
    for o in range(m):
        for p in range(n):
            at = o * n * (n + 1) + p * (n + 1)
            for k in range(n):
                source = o * n + (p if own_rows else k)
                scale[at + k], inverse[at + k] = r[source], q[source]
            scale[at + n], inverse[at + n] = 0, 0


@on_views
def _activate(block, theta, activation, n, ri, qi, rj, qj):
    """Apply an activation to a block of K, and multiply that of Θ, if there is one, by its slope.

    ri, qi: scales of the block's rows, (n,). rj, qj: of its columns, (n,).
    """
    for p in range(n):
        r, q, at = ri[p], qi[p], p * (n + 1)
        row, slopes = block[at : at + n], theta[at : at + n]
        if len(theta) > 0:
            if activation == RELU:
                for k in range(n):
                    row[k], slope, _, _ = relu(row[k], r, q, rj[k], qj[k])
                    slopes[k] *= slope
            else:
                for k in range(n):
                    row[k], slope, _, _ = erf(row[k], r, q, rj[k], qj[k])
                    slopes[k] *= slope
        elif activation == RELU:
            for k in range(n):
                row[k], _, _, _ = relu(row[k], r, q, rj[k], qj[k])
        else:
            for k in range(n):
                row[k], _, _, _ = erf(row[k], r, q, rj[k], qj[k])


@on_views
def _activate_along(block, block_a, block_b, activation, n, ri, qi, rj, qj, vi_a, vi_b, vj_a, vj_b):
    """As `_activate`, and its derivatives along two directions, along which the variances of the block's rows change by
    vi_a and vi_b, (n,), and those of its columns by vj_a and vj_b."""
    for p in range(n):
        r, q, da, db, at = ri[p], qi[p], vi_a[p], vi_b[p], p * (n + 1)
        row, a, b = block[at : at + n], block_a[at : at + n], block_b[at : at + n]
        if activation == RELU:
            for k in range(n):
                row[k], slope, slope_i, slope_j = relu(row[k], r, q, rj[k], qj[k])
                a[k] = slope * a[k] + slope_i * da + slope_j * vj_a[k]
                b[k] = slope * b[k] + slope_i * db + slope_j * vj_b[k]
        else:
            for k in range(n):
                row[k], slope, slope_i, slope_j = erf(row[k], r, q, rj[k], qj[k])
                a[k] = slope * a[k] + slope_i * da + slope_j * vj_a[k]
                b[k] = slope * b[k] + slope_i * db + slope_j * vj_b[k]


@on_views
def _activate_back(g, g_theta, c, theta, activation, ri, qi, rj, qj, to_vi, to_vj):
    """From the cotangents of an activation's block to those of what it read, in place, and of the variances."""
    if len(theta) > 0:
        for k in range(len(g)):
            if activation == RELU:
                _, slope, slope_i, slope_j = relu(c[k], ri[k], qi[k], rj[k], qj[k])
                bend, bend_i, bend_j = relu_bend(c[k], ri[k], qi[k], rj[k], qj[k])
            else:
                _, slope, slope_i, slope_j = erf(c[k], ri[k], qi[k], rj[k], qj[k])
                bend, bend_i, bend_j = erf_bend(c[k], ri[k], qi[k], rj[k], qj[k])
            product = g_theta[k] * theta[k]
            to_vi[k] += g[k] * slope_i + product * bend_i
            to_vj[k] += g[k] * slope_j + product * bend_j
            g[k] = g[k] * slope + product * bend
            g_theta[k] *= slope
    elif activation == RELU:
        for k in range(len(g)):
            _, slope, slope_i, slope_j = relu(c[k], ri[k], qi[k], rj[k], qj[k])
            to_vi[k] += g[k] * slope_i
            to_vj[k] += g[k] * slope_j
            g[k] *= slope
    else:
        for k in range(len(g)):
            _, slope, slope_i, slope_j = erf(c[k], ri[k], qi[k], rj[k], qj[k])
            to_vi[k] += g[k] * slope_i
            to_vj[k] += g[k] * slope_j
            g[k] *= slope


@on_views
def _gather_variances(to_v, blocks, own_rows, m, n):
    """Add to the cotangents of an image's variances those that stand in blocks: the inverse of `_spread_scales`."""
    for o in range(m):
        for p in range(n):
            row = blocks[o * n * (n + 1) + p * (n + 1) :]
            if own_rows:
                to_v[o * n + p] += _total(row[:n])
            else:
                _add_block(to_v[o * n : (o + 1) * n], row, False)


@summing
def _total(values):
    total = like(values[0], 0.0)
    for k in range(len(values)):
        total += values[k]
    return total


@summing
def _inner_product(a, b):
    total = like(a[0], 0.0)
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


# ---- walks through the program


@on_views
def _products_back(g, x, z, to_x, to_z, height, n):
    share = like(x[0, 0], 1.0) / like(x[0, 0], len(x))
    for i in range(height):
        for j in range(height):
            start = (i * height + j) * n * (n + 1)
            for c in range(len(x)):
                other, to_other = z[c, j * n : (j + 1) * n], to_z[c, j * n : (j + 1) * n]
                for p in range(n):
                    row = g[start + p * (n + 1) : start + p * (n + 1) + n]
                    to_x[c, i * n + p] += share * _inner_product(row, other)
                    factor = share * x[c, i * n + p]
                    for k in range(n):
                        to_other[k] += factor * row[k]


@inner
def _shift(turn, m):
    """The shift of a turn: 0, 1, …, m − 1, −1, …, 1 − m. The first is that of the variances."""
    return turn if turn < m else m - 1 - turn


@on_views
def _take_scales(block, n, activation, r, q):
    """Fill in the scales of an image's row from the variances on the diagonal of its block with itself."""
    for i in range(n):
        v = block[i * (n + 1) + i]
        r[i], q[i] = relu_scales(v) if activation == RELU else erf_scales(v)


@on_views
def _take_diagonal(block, n, v):
    for i in range(n):
        v[i] = block[i * (n + 1) + i]


@on_views
def _walk(x, z, groups, steps, weights, biases, trained, own, maps, ri, qi, rj, qj, kept, line):
    """From images x and z through all groups of steps; return where the last map stands.

    own: z is x, whose scales ri, qi (the same arrays as rj, qj) are filled in. maps: memory for those of K, and of Θ
    for a tangent kernel. kept: what `_walk_back` needs, (K, Θ), or of no entries.
    """
    one, zero = like(weights[0], 1.0), like(weights[0], 0.0)
    tangent, keep = len(maps) == 2, kept.shape[1] > 0
    for group in range(len(groups) - 1):
        m, n = steps[groups[group], ROWS + OUTPUTS], steps[groups[group], COLUMNS + OUTPUTS]
        size = n * (n + 1)
        for turn in range(2 * m - 1):
            shift = _shift(turn, m)
            for s in range(groups[group], groups[group + 1]):
                step = steps[s]
                at, scales = step[INDEX], step[SCALES]
                weight, bias = (weights[at], biases[at]) if step[KIND] == CONV else (one, zero)
                keep_step = keep and step[KEPT] != NOT_KEPT
                _clear(line)
                for o in range(max(0, -shift), min(m, m - shift)):
                    u = o + shift
                    start = step[OUT + PLACE] + o * step[OUT + DOWN] + u * step[OUT + ACROSS]
                    for which in range(len(maps)):
                        out, count = maps[which, start : start + size], len(x) if which == 0 else 0
                        own_weight, own_bias = one if keep_step else weight, zero if keep_step or which else bias
                        _block(out, maps[which], x[:count], z[:count], step, o, u, own_weight, own_bias, line)
                        if keep_step:
                            to = step[KEPT] + (o * m + u) * size
                            _add_block(kept[which, to : to + size], out, True)
                            _affine(out, weight, zero if which else bias)
                            _clear_ends(out, n)
                    out, theta = maps[0, start : start + size], maps[len(maps) - 1, start : start + size * tangent]
                    if tangent and step[KIND] == CONV:
                        _add_times(theta, trained[at], out)
                    if step[ACTIVATION] != NONE:
                        left, right = scales + o * n, scales + u * n
                        if own and shift == 0:
                            _take_scales(out, n, step[ACTIVATION], ri[left:], qi[left:])
                        _activate(out, theta, step[ACTIVATION], n, ri[left:], qi[left:], rj[right:], qj[right:])
    return steps[len(steps) - 1, OUT + PLACE]


@on_views
def _walk_along(
    x, z, groups, steps, weights, biases, along_weights, along_biases, own, maps, ri, qi, rj, qj, vi, vj, line
):  # fmt: skip
    """As `_walk`, for K and its derivatives along two directions of weights and biases.

    vi, vj: derivatives of the images' variances, (2, variances), filled in with `own`. maps: memory for those of K and
    of the derivatives.
    """
    one, zero = like(weights[0], 1.0), like(weights[0], 0.0)
    for group in range(len(groups) - 1):
        m, n = steps[groups[group], ROWS + OUTPUTS], steps[groups[group], COLUMNS + OUTPUTS]
        size = n * (n + 1)
        for turn in range(2 * m - 1):
            shift = _shift(turn, m)
            for s in range(groups[group], groups[group + 1]):
                step = steps[s]
                at, scales = step[INDEX], step[SCALES]
                weight, bias = (weights[at], biases[at]) if step[KIND] == CONV else (one, zero)
                _clear(line)
                for o in range(max(0, -shift), min(m, m - shift)):
                    u = o + shift
                    start = step[OUT + PLACE] + o * step[OUT + DOWN] + u * step[OUT + ACROSS]
                    out, a, b = (
                        maps[0, start : start + size],
                        maps[1, start : start + size],
                        maps[2, start : start + size],
                    )
                    _blocks_along(
                        out, a, b, maps, x, z, step, o, u, weight, bias, along_weights, along_biases, line
                    )  # fmt: skip
                    if step[ACTIVATION] != NONE:
                        left, right = scales + o * n, scales + u * n
                        if own and shift == 0:
                            _take_scales(out, n, step[ACTIVATION], ri[left:], qi[left:])
                            _take_diagonal(a, n, vi[0, left:])
                            _take_diagonal(b, n, vi[1, left:])
                        _activate_along(
                            out, a, b, step[ACTIVATION], n, ri[left:], qi[left:], rj[right:], qj[right:],
                            vi[0, left:], vi[1, left:], vj[0, right:], vj[1, right:],
                        )  # fmt: skip
    return steps[len(steps) - 1, OUT + PLACE]


@on_views
def _walk_back(
    x, steps, weights, biases, trained, own, inputs, cotangents, ri, qi, rj, qj, kept, to_vi, to_vj,
    to_weights, to_biases, line, blocks, block, block_theta,
):  # fmt: skip
    """From the cotangent of the last map to those of weights, biases, variances and, with `inputs`, of the products.

    own: an image with itself, whose variances' cotangents, to_vi and to_vj together, go on along its diagonal.
    """
    one, zero = like(weights[0], 1.0), like(weights[0], 0.0)
    tangent = len(cotangents) == 2
    for s in range(len(steps) - 1, -1, -1):
        step = steps[s]
        at = step[INDEX]
        is_conv, is_active = step[KIND] == CONV, step[ACTIVATION] != NONE
        weight, bias, share = (weights[at], biases[at], trained[at]) if is_conv else (one, zero, zero)
        m, n = step[ROWS + OUTPUTS], step[COLUMNS + OUTPUTS]
        size, scales = n * (n + 1), step[SCALES]
        g, g_thetas = cotangents[0, step[G_OUT]], cotangents[len(cotangents) - 1, step[G_OUT]]
        if is_active:
            _spread_scales(ri[scales:], qi[scales:], True, m, n, blocks[0], blocks[1])
            _spread_scales(rj[scales:], qj[scales:], False, m, n, blocks[2], blocks[3])
            _clear(blocks[4])
            _clear(blocks[5])
        for o in range(m if is_active or is_conv else 0):
            for u in range(m):
                start = (o * m + u) * size
                to = step[KEPT] + start
                here, sums = g[start : start + size], kept[0, to : to + size]
                g_theta = g_thetas[start : start + size * tangent]
                sums_theta = kept[len(kept) - 1, to : to + size * tangent]
                if is_active:
                    left, right = slice(o * size, (o + 1) * size), slice(u * size, (u + 1) * size)
                    for k in range(size):
                        block[k] = bias + weight * sums[k]
                    for k in range(len(sums_theta)):
                        block_theta[k] = share * block[k] + weight * sums_theta[k]
                    _activate_back(
                        here, g_theta, block[:size], block_theta[: len(sums_theta)], step[ACTIVATION],
                        blocks[0, left], blocks[1, left], blocks[2, right], blocks[3, right],
                        blocks[4, left], blocks[5, right],
                    )  # fmt: skip
                if is_conv:
                    if tangent:
                        _add_times(here, share, g_theta)
                        to_weights[at] += np.float64(_inner_product(g_theta, sums_theta))
                    to_biases[at] += np.float64(_total(here))
                    to_weights[at] += np.float64(_inner_product(here, sums))
        if is_active:
            _gather_variances(to_vi[scales:], blocks[4], True, m, n)
            _gather_variances(to_vj[scales:], blocks[5], False, m, n)
        if own and is_active:
            for o in range(m):
                for i in range(n):
                    to_v = to_vi[scales + o * n + i] + to_vj[scales + o * n + i]
                    on = (o * m + o) * size + i * (n + 1) + i
                    g[on] += to_v
                    if is_conv:
                        to_biases[at] += np.float64(to_v)
                        to_weights[at] += np.float64(to_v * kept[0, step[KEPT] + on])
        for which in range(len(cotangents)):
            for side in range(2 if step[KIND] == ADD else 1):
                place = step[IN2 + PLACE] if side else step[IN + PLACE]
                if place != IMAGES or (inputs and which == 0):
                    to_source = cotangents[which, step[G_IN + side]]
                    _linear_back(
                        cotangents[which, step[G_OUT]], to_source, step, step[FRESH + side], weight, line, block, x[:0]
                    )  # fmt: skip


# ---- what the engine calls


@inner
def _columns(pairs, i, count):
    """The first and one after the last column of row i of a tile."""
    if pairs == OWN:
        return i, i + 1
    return (i + 1 if pairs == ABOVE else 0), count


@entry
def values(x, z, pairs, groups, steps, weights, biases, trained, sizes, ri, qi, rj, qj, out):
    """K(x, z) or Θ(x, z) of a tile into `out`, (len(x), len(z)); which of its pairs, `pairs` says.

    OWN: images x with themselves, whose scales ri, qi are filled in; `out` is (len(x), 1).
    """
    maps = np.empty((sizes[0], sizes[1]), x.dtype)
    line, none = np.empty(sizes[5], x.dtype), np.empty((sizes[0], 0), x.dtype)
    for i in range(len(x)):
        for j in range(*_columns(pairs, i, len(z))):
            last = _walk(
                x[i], z[j], groups, steps, weights, biases, trained, pairs == OWN, maps, ri[i], qi[i], rj[j], qj[j],
                none, line,
            )  # fmt: skip
            out[i, 0 if pairs == OWN else j] = maps[len(maps) - 1, last]


@entry
def values_along(
    x, z, pairs, groups, steps, weights, biases, along_weights, along_biases, sizes, ri, qi, rj, qj, vi, vj, out
):  # fmt: skip
    """K(x, z) of a tile and its derivatives along two directions into `out`, (3, len(x), len(z)), as `values`.

    OWN: the scales ri, qi and the variances' derivatives vi, (images, 2, variances), are filled in; `out` is
    (3, len(x), 1).
    """
    maps, line = np.empty((3, sizes[1]), x.dtype), np.empty(sizes[5], x.dtype)
    for i in range(len(x)):
        for j in range(*_columns(pairs, i, len(z))):
            last = _walk_along(
                x[i], z[j], groups, steps, weights, biases, along_weights, along_biases, pairs == OWN, maps,
                ri[i], qi[i], rj[j], qj[j], vi[i], vj[j], line,
            )  # fmt: skip
            for which in range(3):
                out[which, i, 0 if pairs == OWN else j] = maps[which, last]


@entry
def pull(
    x, z, g, pairs, groups, steps, weights, biases, trained, sizes, ri, qi, rj, qj, inputs,
    to_vi, to_vj, to_weights, to_biases, to_x, to_z,
):  # fmt: skip
    """From the cotangents g of a tile to those of weights and biases, and of the images' variances and pixels.

    With OWN g is (len(x), 1), and the variances' cotangents to_vi are then complete.
    """
    maps = np.empty((sizes[0], sizes[1]), x.dtype)
    cotangents = np.empty((sizes[0], sizes[3], sizes[2]), x.dtype)
    kept = np.empty((sizes[0], sizes[4]), x.dtype)
    line, blocks = np.empty(sizes[5], x.dtype), np.empty((6, sizes[7]), x.dtype)
    block, block_theta = np.empty(sizes[6], x.dtype), np.empty(sizes[6], x.dtype)
    first, end, own = steps[0], steps[len(steps) - 1, G_OUT], pairs == OWN
    for i in range(len(x)):
        for j in range(*_columns(pairs, i, len(z))):
            _walk(
                x[i], z[j], groups, steps, weights, biases, trained, own, maps, ri[i], qi[i], rj[j], qj[j], kept, line
            )  # fmt: skip
            cotangents[:, end, :2] = 0
            cotangents[len(cotangents) - 1, end, 0] = g[i, 0 if own else j]
            _walk_back(
                x[i], steps, weights, biases, trained, own, inputs, cotangents, ri[i], qi[i], rj[j], qj[j],
                kept, to_vi[i], to_vj[j], to_weights, to_biases, line, blocks, block, block_theta,
            )  # fmt: skip
            if inputs:
                height, n = first[ROWS + INPUTS], first[COLUMNS + INPUTS]
                _products_back(cotangents[0, first[G_IN]], x[i], z[j], to_x[i], to_z[j], height, n)
