"""`optimizer=none`: measure the objective of an unchanged kernel."""

from __future__ import annotations

from kfx.kernels.base import Kernel
from kfx.optimizers.loop import Answer, FitSetup, Optimizer, Question
from kfx.optimizers.loss import Evaluation
from kfx.sampling.samplers import Batch


class Unmoved(Optimizer):
    """Evaluates the objective on the same batches as every other optimizer, and changes no parameter."""

    def start(self, setup: FitSetup) -> None:
        self.kernel = setup.kernel

    def ask(self, iteration: int, batch: Batch) -> Question:
        return Question(self.kernel.flat, gradient=False)

    def tell(self, evaluation: Evaluation) -> Answer:
        return Answer(error=evaluation.error)

    def result(self) -> Kernel:
        return self.kernel
