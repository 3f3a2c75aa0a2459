"""The section `outputs`: several targets, their components, and one kernel for all of them or one each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kfx.config.fields import Several, number, ranged, word
from kfx.config.option import Option, section
from kfx.config.parts import ConfigView
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.data.dataset import Dataset

SEPARATE = "separate"


@section("outputs", "several targets: their components, and one kernel for all of them or one each")
class OutputsSection(Option):
    implied = {"reduce": "none", "components": 0.999, "regularization": 0.01, "kernels": "shared"}  # noqa: RUF012

    reduce: str = word(
        "none | pca | cca",
        "what kernels are trained on; none: the targets; pca: their principal components; cca: their "
        "directions most correlated with the points",
    )
    components: Several = ranged(
        0.999,
        "a share > 0 and < 1, or a whole number >= 1",
        lambda v: (type(v) is int and v >= 1) or (isinstance(v, float) and 0 < v < 1),
        "components that are kept: the share of the variance that they have, of cca of the squared correlations, or "
        "their number",
    )
    regularization: float = number(
        0.01, "> 0", "with cca: added to the diagonal of both covariances, in units of their mean diagonal"
    )
    kernels: str = word(
        ("auto", "shared", SEPARATE),
        "shared: one kernel for all outputs; separate: one for each output or component, with its own "
        "parameters and lambda; auto: separate with components, else shared",
        settle=lambda own, _: "shared" if own.reduce == "none" else SEPARATE,
    )

    @property
    def is_separate(self) -> bool:
        """Whether each output has a kernel of its own."""
        return self.kernels == SEPARATE

    @property
    def of_components(self) -> bool:
        """Whether kernels are trained on components, in which there is little noise."""
        return self.reduce != "none"

    @property
    def unit(self) -> str:
        """What has a fit of its own, for people."""
        return "kernel" if self.is_separate else "fold"

    def applied(self, data: Dataset) -> Dataset:
        """The data set with its targets reduced as configured, by its training points."""
        if self.reduce == "none":
            return data
        from kfx.data.dataset import reduced

        return reduced(data, self.reduce, self.components, self.regularization)

    def separated(self, parts: Sequence[Dataset]) -> list[Dataset]:
        """The data sets that kernels are trained on: the parts, or each part's outputs one by one."""
        return [each for part in parts for each in part.components()] if self.is_separate else list(parts)

    def check(self, config: ConfigView) -> None:
        if self.reduce != "none" and (config.dataset.has_classes or config.dataset.is_series):
            what = "classes" if config.dataset.has_classes else "windows of series"
            raise ConfigError(f"outputs.reduce={self.reduce}: takes targets that are numbers, not {what}; set none")
        if self.reduce != "none" and config.evaluation.posterior_variance:
            raise ConfigError(
                "evaluation.posterior_variance=true: is that of components; use evaluation.calibration=true, whose "
                "deviations are in the units of the targets"
            )
        if not self.is_separate:
            return
        refused = {
            "classes": config.dataset.has_classes,
            f"objective={config.objective.name}": config.objective.name in ("backtest", "hausdorff"),
            f"optimizer={config.optimizer.name}, which moves points": config.optimizer.moves_points,
            "follow.every or follow.last": config.follow.every + config.follow.last > 0,
            "kernel.start_from=worst": config.kernel.start_from == "worst",
            "evaluation.rho=true": config.evaluation.rho,
            "evaluation.train_error=true": config.evaluation.train_error,
            "evaluation.posterior_variance=true": config.evaluation.posterior_variance,
            "evaluation.draws": getattr(config.evaluation, "draws", 0) > 0,
            "kernel_check=true": config.kernel_check,
        }
        for what in [what for what, is_wrong in refused.items() if is_wrong]:
            raise ConfigError(f"outputs.kernels=separate: does not go with {what}; set outputs.kernels=shared")


class OneComponent(OutputsSection):
    """Of an estimator whose target is a component already."""

    of_components = True
