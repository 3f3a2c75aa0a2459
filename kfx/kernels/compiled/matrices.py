"""The activation of whole matrices in compiled loops: of a row's and a column's covariance, and its gradient."""

from __future__ import annotations

from kfx.kernels.compiled.activations import like, relu
from kfx.numerics.compilation import entry, summing_entry


@entry
def relu_of_matrix(c, ri, qi, rj, qj, weight_and_bias, out):
    """2 w V(c) + b of covariances c, (rows, columns), into `out`; r, q: scales and inverse scales."""
    weight, bias = like(c[0, 0], 2.0) * weight_and_bias[0], weight_and_bias[1]
    for i in range(len(c)):
        for j in range(len(rj)):
            value, _, _, _ = relu(c[i, j], ri[i], qi[i], rj[j], qj[j])
            out[i, j] = weight * value + bias


@summing_entry
def relu_of_matrix_back(g, c, ri, qi, rj, qj, weight_and_bias, to_c, to_vi, to_vj, to_weight, to_bias):
    """From the cotangent g of `relu_of_matrix` those of c and of the rows' variances; those of the columns' variances,
    of w and of b are added to what is there, the last two column by column."""
    two, weight = like(c[0, 0], 2.0), like(c[0, 0], 2.0) * weight_and_bias[0]
    for i in range(len(c)):
        total = like(two, 0.0)
        for j in range(len(rj)):
            value, slope_c, slope_i, slope_j = relu(c[i, j], ri[i], qi[i], rj[j], qj[j])
            scaled = weight * g[i, j]
            to_c[i, j] = scaled * slope_c
            total += scaled * slope_i
            to_vj[j] += scaled * slope_j
            to_weight[j] += two * g[i, j] * value
            to_bias[j] += g[i, j]
        to_vi[i] = total
