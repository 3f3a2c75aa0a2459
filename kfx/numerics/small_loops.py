"""Loops over small matrices, where calls of a library take longer than their arithmetic."""

from __future__ import annotations

import numpy as np

from kfx.numerics.compilation import summing_entry


@summing_entry
def squared_distances(points, out):
    """‖x_i − x_j‖² of points (n, features) by differences, into (n, n)."""
    n, features = points.shape
    columns = np.ascontiguousarray(points.T)
    for i in range(n):  # over whole rows: half of the work would take longer, in loops of uneven length
        for j in range(n):
            out[i, j] = 0.0
        for k in range(features):
            for j in range(n):
                difference = points[i, k] - columns[k, j]
                out[i, j] += difference * difference


@summing_entry
def solve_nested(upper, y, sample_size, w, vectors):
    """Solve for a batch and its sample, the first points: w = L⁻¹y, and vectors = [A⁻¹y, A_c⁻¹y_c], padded with zeros.

    upper: Lᵀ, (n, n), zeros below its diagonal. y, w: (n, outputs), float64.
    """
    n, outputs = y.shape
    one, solved = np.empty(n), np.empty(n)
    for o in range(outputs):
        for i in range(n):
            one[i] = y[i, o]
        for j in range(n):
            known = one[j] / upper[j, j]
            for i in range(n):
                one[i] -= upper[j, i] * known
            one[j] = known
        for i in range(n):
            w[i, o] = one[i]
        for which in range(2):
            size = n if which == 0 else sample_size
            column = which * outputs + o
            for i in range(n):
                solved[i] = 0.0
            for j in range(size - 1, -1, -1):
                total = 0.0
                for i in range(n):
                    total += upper[j, i] * solved[i]
                solved[j] = (one[j] - total) / upper[j, j]
            for i in range(n):
                vectors[i, column] = solved[i]


@summing_entry
def inner_product(matrix, vectors, weights):
    """Σ_k s_k u_kᵀ M u_k. matrix: M, (n, n). vectors: u, (n, rank). weights: s."""
    n, rank = vectors.shape
    one, found = np.empty(n), 0.0
    for k in range(rank):
        for i in range(n):
            one[i] = vectors[i, k]
        for i in range(n):
            total = 0.0
            for j in range(n):
                total += matrix[i, j] * one[j]
            found += weights[k] * one[i] * total
    return found


@summing_entry
def extent(points):
    """The largest size of a coordinate, and of its distance to the first point's. NaN where a point has one."""
    n, features = points.shape
    size, spread = 0.0, 0.0
    for i in range(n):
        for k in range(features):
            here, away = abs(points[i, k]), abs(points[i, k] - points[0, k])
            if here != here:
                return here, here
            size, spread = max(size, here), max(spread, away)
    return size, spread


@summing_entry
def moved_points(slope, vectors, weights, points, out):
    """4 Σ_j G_ij S_ij (x_i − x_j) into (n, features), G = Σ_k s_k u_k u_kᵀ: the gradient to the points from a cotangent
    G of K, where S are the slopes of K to the squared distances.

    slope: (n, n). vectors: u, (n, rank). weights: s. points: (n, features).
    """
    n, features = points.shape
    columns, each = np.ascontiguousarray(points.T), np.ascontiguousarray(vectors.T)
    row = np.empty(n)
    for i in range(n):
        for j in range(n):
            row[j] = 0.0
        for k in range(len(each)):
            own = weights[k] * each[k, i]
            for j in range(n):
                row[j] += own * each[k, j]
        for j in range(n):
            row[j] *= slope[i, j]
        for k in range(features):
            here, total = points[i, k], 0.0
            for j in range(n):
                total += row[j] * (here - columns[k, j])
            out[i, k] = 4.0 * total


@summing_entry
def sums_of_signs(weights, points, out):
    """Σ_j w_ij sign(x_i − x_j) into (n, features). weights: (n, n). points: (n, features)."""
    n, features = points.shape
    columns = np.ascontiguousarray(points.T)
    for i in range(n):
        for k in range(features):
            here, total = points[i, k], 0.0
            for j in range(n):
                there = columns[k, j]
                total += weights[i, j] * ((1.0 if here > there else 0.0) - (1.0 if here < there else 0.0))
            out[i, k] = total


def compile_for(dtype: type) -> None:
    """Load the loops for float32 or float64; the first time on a machine they are compiled, and kept."""
    points: np.ndarray = np.ones((2, 1), dtype)
    vectors = np.ones((2, 2))
    squared_distances(points, np.empty((2, 2), dtype))
    solve_nested(np.eye(2), np.ones((2, 1)), 1, np.empty((2, 1)), vectors)
    moved_points(np.ones((2, 2), dtype), vectors, np.ones(2), points, np.empty((2, 1)))
    inner_product(np.ones((2, 2), dtype), vectors, np.ones(2))
    extent(points)
    sums_of_signs(np.ones((2, 2), dtype), points, np.empty((2, 1), dtype))
