"""Cross-entropy of a network's linear head, to compare training with and without kernels."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy, linear

from kfx.kernels.network_features import dropout_mask, gaussian
from kfx.kernels.regularized import Regularized, bare
from kfx.kernels.with_head import BIAS, WEIGHT, KernelWithHead
from kfx.numerics.arrays import Vector
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regularization import Regularization
from kfx.objectives import interpolation_error, rho
from kfx.optimizers.loss import Evaluation, Loss, with_failures_kept
from kfx.sampling.samplers import Batch


class ClassificationLoss(Loss):
    """−mean log softmax(F(x) Wᵀ + b)[class] over a batch, of a `KernelWithHead` kernel.

    dropout: share of the features set to zero in a step; the others are multiplied by 1/(1 − dropout). The seed
        depends on the batch alone. Evaluations without a gradient, as on held-out batches, use no dropout and measure
        ρ as well.
    inner_weight: weight of Σ_l e₂(l)/N_f over the outputs of inner layers l, where e₂(l) is the error of interpolating
        the batch from its sample by a Gaussian kernel exp(−γ r²), γ = 4 / the mean squared distance of the outputs
        (Yoo & Owhadi 2021).
    x: training points, (N, …). y: one-hot targets, (N, outputs).
    """

    def __init__(
        self,
        dropout: float,
        inner_weight: float,
        regularization: Regularization,
        kernel: KernelWithHead | Regularized,
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        super().__init__(rho, regularization, kernel, x, y)
        self.dropout, self.inner_weight = dropout, inner_weight
        self.classes = y.argmax(dim=1)

    def __call__(self, vector: Vector, batch: Batch, gradient: bool = True) -> Evaluation:
        if not gradient:
            return self._measured_without_step(vector, batch)
        kernel = self._headed(vector)

        def fill_in(found: Evaluation) -> None:
            x, y, classes = batch.of(self.x, self.y, self.classes)
            self.kernel_evaluations += 1
            tape = kernel.kernel.taped(x, kernel.head)
            with torch.enable_grad():
                features = tape.made
                if self.dropout:
                    features = features * dropout_mask(features.detach(), self.dropout, batch.indices.tobytes())
                loss = cross_entropy(linear(features, tape.leaves[WEIGHT], tape.leaves[BIAS]), classes)
                outputs: list[tuple[torch.Tensor, torch.Tensor | None]] = [(loss, None)]
                value = loss.detach()
                for layer in tape.inner if self.inner_weight else ():
                    error, cotangent = self._inner_error(layer.detach().flatten(1), y, batch.sample_size)
                    value = value + self.inner_weight * error / len(x)
                    outputs.append((layer, cotangent.reshape(layer.shape) * (self.inner_weight / len(x))))
            found.objective = float(value)
            found.gradient = self.kernel.flatten({**kernel.parameters, **tape.pull(outputs)[0]})

        return with_failures_kept(kernel, vector, fill_in)

    def _headed(self, vector: Vector) -> KernelWithHead:
        inner = bare(self.kernel.with_flat(vector))
        assert isinstance(inner, KernelWithHead)
        return inner

    @torch.no_grad()
    def _measured_without_step(self, vector: Vector, batch: Batch) -> Evaluation:
        """Return the cross-entropy without dropout, with ρ of the features' kernel."""
        of_kernel = super().__call__(vector, batch, gradient=False)
        x, classes = batch.of(self.x, self.classes)
        value = float(cross_entropy(self._headed(vector).predict(x).outputs, classes))
        return replace(of_kernel, vector=vector, objective=value)

    def _inner_error(self, f: torch.Tensor, y: torch.Tensor, sample_size: int) -> tuple[float, torch.Tensor]:
        with torch.no_grad():
            gram, pull = gaussian(f, None, True)
            value, cotangent = interpolation_error(Factored(gram), y, sample_size, self.regularization)
            assert isinstance(cotangent, torch.Tensor)
            return value, pull(cotangent)[0]
