"""The option `evaluation=rollout`: forecasts of series, beside predictions of the next step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from kfx.config.fields import number
from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.config.rules import SERIES, needs, rows
from kfx.data.series_options import SeriesData
from kfx.evaluation.options import TestPointsOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kfx.data.deviations import Deviations
    from kfx.data.windows import Trajectory
    from kfx.evaluation.ensemble import Other
    from kfx.evaluation.scoring import Scoring
    from kfx.kernels.base import Kernel


@option(
    "evaluation",
    "rollout",
    "The same, and forecasts of series in which each value is predicted from those predicted before it",
)
class RolloutOption(TestPointsOption):
    rules = rows(needs(SERIES, "leave it out"))
    quick = ("dataset=dynamics", "dataset.n_train=150", "dataset.n_test=80", "evaluation.horizon=20")

    starts: int = number(
        5, "whole >= 1 and <= 1000", "number of forecasts, from the end of the training series onwards"
    )
    horizon: int | None = number(
        None,
        "whole >= 1",
        "number of steps of a forecast",
        null="as many as the test series has, or half of them with several starts",
    )
    threshold: float = number(
        0.4, "> 0", "error, in standard deviations of the training series, at which the valid time of a forecast ends"
    )
    attractor_steps: int | None = number(
        None,
        "whole >= 50",
        "number of steps of free runs, one from each start, whose points, spectra and divergence are compared with the "
        "test series'",
        null="no long-term statistics",
    )

    def forecast_steps(self) -> int | None:
        return self.horizon

    def scoring(self, config: ConfigView) -> Scoring:
        from kfx.evaluation.rollout import Rollout

        own = self.starts, self.horizon, self.threshold, self.attractor_steps
        rollout = Rollout(*own, *other_members(config))
        return replace(super().scoring(config), rollout=rollout)

    def check(self, config: ConfigView) -> None:
        assert isinstance(config.dataset, SeriesData)
        test = config.dataset.split()[1]
        longest = max(map(len, test))
        for key in ("horizon", "attractor_steps"):
            steps = getattr(self, key)
            if steps is not None and steps > longest:
                raise ConfigError(
                    f"evaluation.{key}={steps}: only {longest} steps follow the training series; ask for fewer"
                )
        if self.attractor_steps is not None:
            self._require_regular(config.dataset, test)
        super().check(config)

    def _require_regular(self, dataset: SeriesData, test: Sequence[Trajectory]) -> None:
        """ConfigError where a spectrum has no meaning."""
        import numpy as np

        reason = "steps of even length" if dataset.elapsed or dataset.may_be_irregular() else ""
        if any(np.isnan(each.values).any() for each in test):
            reason = "test series without missing values; fill them"
        if reason:
            raise ConfigError(
                f"evaluation.attractor_steps={self.attractor_steps}: spectra need {reason}, or leave it out"
            )


def other_members(config: ConfigView) -> tuple[Sequence[Other], Deviations | None]:
    """What a run's forecasts are made of beside its own kernel, and their deviations, None without a backtest."""
    from kfx.data.choice import kernel_with_length
    from kfx.data.deviations import Deviations

    dataset = config.dataset
    assert isinstance(dataset, SeriesData)
    of = kernel_with_length(config.kernel.standing_for(config))
    others = [(windows, cast("Kernel", of(length)), shift) for windows, length, shift in dataset.other_settings()]
    return others, None if dataset.deviations is None else Deviations.recorded(dataset.deviations)
