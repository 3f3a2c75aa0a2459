"""The CNNGP as cnn-gp computes it: whole covariance maps through torch's conv2d, and the arccosine as printed."""

from __future__ import annotations

import torch

from kfx.kernels import ReLU, Residual


def by_convolutions_of_ones(layers, x, weight_variance, bias_variance):
    """K(x, x), (n, n), in the dtype and on the device of x, (n, channels, height, width)."""
    x = torch.as_tensor(x)
    c = through_convolutions_of_ones(layers, (x[:, None] * x[None, :]).mean(dim=2), weight_variance, bias_variance)
    return c[..., 0, 0].cpu().numpy()


def through_convolutions_of_ones(layers, c, weight_variance, bias_variance):
    n = len(c)
    for layer in layers:
        if isinstance(layer, ReLU):
            v = c[torch.arange(n), torch.arange(n)]
            r = (v[:, None] * v[None, :]).sqrt()
            cosine = (c / r).clamp(-1, 1)
            angle = torch.arccos(cosine)
            c = r * (torch.sin(angle) + (torch.pi - angle) * cosine) / (2 * torch.pi)
            continue
        if isinstance(layer, Residual):
            c = c + through_convolutions_of_ones(layer.body, c, weight_variance, bias_variance)
            continue
        k = layer.kernel_size if isinstance(layer.kernel_size, tuple) else (layer.kernel_size,) * 2
        ones = torch.ones(1, 1, *k, dtype=c.dtype, device=c.device) / (k[0] * k[1])
        spread = torch.nn.functional.conv2d(
            c.flatten(0, 1)[:, None], ones, None, layer.stride, layer.padding, layer.dilation
        )
        c = bias_variance + weight_variance * layer.weight_multiplier * spread[:, 0].unflatten(0, (n, n))
    return c
