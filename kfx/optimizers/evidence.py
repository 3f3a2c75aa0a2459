"""The evidence lower bound of a deep kernel machine, on minibatches (Milsom et al. 2023, eq. 69)."""

from __future__ import annotations

import math
import zlib

import torch

from kfx.kernels.base import Kernel
from kfx.kernels.conv_dkm.gram import InducingGram
from kfx.kernels.conv_dkm.kernel import nystrom
from kfx.kernels.conv_dkm.posterior import WithPosterior, outputs
from kfx.kernels.regularized import Regularized, bare
from kfx.numerics.arrays import Vector
from kfx.numerics.linear_algebra import Factored
from kfx.numerics.regularization import Regularization
from kfx.objectives import rho
from kfx.optimizers.loss import Evaluation, Loss, with_failures_kept
from kfx.outcomes import NumericalError
from kfx.sampling.samplers import Batch


class EvidenceLoss(Loss):
    """The negative evidence lower bound per training point of a `WithPosterior` (Milsom et al. 2023, eq. 69):

        −E log p(y | f), the mean over a batch, + (Σ penalties of Gram layers + KL of the outputs) / N.

    samples: number of samples of the outputs, for a likelihood without a closed form; their seed depends on the batch
        alone. per_class: whether the outputs' KL divergences are averaged instead of summed.
    kernel: a `WithPosterior`, with or without its own λ. x: training images, (N, channels, height, width). y: one-hot
    targets, (N, outputs). ρ in the trace is that of the top layer's kernel on the batch.
    """

    def __init__(
        self,
        samples: int,
        per_class: bool,
        regularization: Regularization,
        kernel: WithPosterior | Regularized,
        x: torch.Tensor,
        y: torch.Tensor,
    ) -> None:
        super().__init__(rho, regularization, kernel, x, y)
        self.samples, self.per_class = samples, per_class

    def __call__(self, vector: Vector, batch: Batch, gradient: bool = True) -> Evaluation:
        kernel = self.kernel.with_flat(vector)
        of_kernel = bare(kernel)
        assert isinstance(of_kernel, WithPosterior)
        x, y = batch.of(self.x, self.y)
        self.kernel_evaluations += 1

        def fill_in(found: Evaluation) -> None:
            tape = of_kernel.kernel.taped(x, of_kernel.posterior)
            with torch.enable_grad():
                made = outputs(tape.made, tape.leaves)
                mean, variance = made.mean, made.variance
                likelihood = of_kernel.likelihood
                expected = likelihood.expected(mean, variance, y, self.samples, self._generator(batch))
                divergence = made.divergence.mean() if self.per_class else made.divergence.sum()
                value = (divergence + sum(tape.made.penalties.values())) / len(self.x) - expected
            found.objective, *parts = torch.stack([value, expected, divergence, *tape.made.penalties.values()]).tolist()
            names = ("expected_log_likelihood", "kl", *(f"penalty.{name}" for name in tape.made.penalties))
            right = mean.argmax(dim=1) == y.argmax(dim=1)
            found.measured = {**dict(zip(names, parts, strict=True)), "train_accuracy": float(right.double().mean())}
            found.regularization, found.rho = self._rho(kernel, tape.made, y, batch)
            if gradient:
                found.gradient = self.kernel.flatten({**kernel.parameters, **tape.pull([(value, None)])[0]})

        return with_failures_kept(kernel, vector, fill_in)

    @torch.no_grad()
    def _rho(self, kernel: Kernel, top: InducingGram, y: torch.Tensor, batch: Batch) -> tuple[float, float]:
        """Return λ and ρ of the top layer's kernel; NaN where they cannot be computed, which does not stop the fit."""
        try:
            factored, regularization = Factored(nystrom(top)), kernel.own_regularization or self.regularization
            value, _ = rho(factored, y, batch.sample_size, regularization, False)
            return regularization.of(factored.gram), value
        except NumericalError:
            return math.nan, math.nan

    def _generator(self, batch: Batch) -> torch.Generator:
        return torch.Generator(self.x.device).manual_seed(zlib.crc32(batch.indices.tobytes()))
