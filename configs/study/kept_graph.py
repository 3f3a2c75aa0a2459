"""The three-layer CNNGP of Khalid 2022, Fig. 3.7, by plain autograd, its graph kept: what his Fig. 3.8 measures."""

import math

import torch
from torch.nn.functional import avg_pool2d

from kfx.kernels import Formula
from kfx.options import KernelOption, one_of, option, parameter


def arc_cosine(c, v, w):
    """E[relu(f) relu(g)] for variances v, w and covariance c (eq. 3.3), an operation of autograd a step."""
    s = torch.sqrt((v * w - c * c).clamp_min(1e-12))
    return (s + (math.pi - torch.atan2(s, c)) * c) / (2 * math.pi)


class ArcCosine(torch.autograd.Function):
    """The same as one operation, which keeps its inputs alone (eq. 3.4 to 3.7)."""

    @staticmethod
    def forward(ctx, c, v, w):
        ctx.save_for_backward(c, v, w)
        return arc_cosine(c, v, w)

    @staticmethod
    def backward(ctx, g):
        c, v, w = ctx.saved_tensors
        s = torch.sqrt((v * w - c * c).clamp_min(1e-12))
        by_variance = (g * s / (4 * math.pi * v)).sum(dim=1, keepdim=True)
        by_other = (g * s / (4 * math.pi * w)).sum(dim=0, keepdim=True)
        return g * (math.pi - torch.atan2(s, c)) / (2 * math.pi), by_variance, by_other


class KeptGraph(Formula):
    """Its pullback goes back through the graph of all pairs."""

    def _pullback(self, x):
        with torch.enable_grad():
            parameters = self._as_tensors(x, gradient=True)
            gram = self.formula(x, x, **parameters)

        def pull(cotangent, inputs):
            if inputs:
                raise ValueError("kept_graph: has no gradient to its inputs")
            slopes = torch.autograd.grad(gram, list(parameters.values()), cotangent.to(gram))
            return dict(zip(parameters, map(float, slopes), strict=True)), None

        return gram.detach(), pull


@option("kernel", "kept_graph", "CNNGP `simple` by torch's autograd, whose graph is kept: a baseline for memory")
class KeptGraphOption(KernelOption):
    images_only = True
    input_gradients = False

    weight_variance: float = parameter(1.0, 1e-3, 1e3, "of a convolution's weights, divided by its patch", ">= 0")
    bias_variance: float = parameter(1.0, 1e-3, 1e3, "of its biases", ">= 0")
    relu: str = one_of("operations", "operations", "one_node", meaning="its covariance in autograd's graph")

    def make(self, image, **common):
        relu = {"operations": arc_cosine, "one_node": ArcCosine.apply}[self.relu]

        def formula(x, y, weight_variance, bias_variance):
            def convolved(maps):
                return bias_variance + weight_variance * avg_pool2d(maps, 7, stride=1, padding=3)

            c = convolved((x[:, None] * y[None, :]).mean(dim=2))
            v, w = (convolved((points**2).mean(dim=1)) for points in (x, y))
            return bias_variance + weight_variance * relu(c, v[:, None], w[None, :]).mean(dim=(-2, -1))

        values = {"weight_variance": self.weight_variance, "bias_variance": self.bias_variance}
        return KeptGraph(formula, values, may_be_zero=values, name=self.name, **common)
