"""The option `evaluation=rollout`: forecasts of series, beside predictions of the next step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kfx.config.fields import number
from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.config.rules import SERIES, needs, rows
from kfx.data.series_options import SeriesData
from kfx.evaluation.options import TestPointsOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.evaluation.scoring import Scoring


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

    def forecast_steps(self) -> int | None:
        return self.horizon

    def scoring(self, config: ConfigView) -> Scoring:
        from kfx.evaluation.rollout import Rollout

        return replace(super().scoring(config), rollout=Rollout(self.starts, self.horizon, self.threshold))

    def check(self, config: ConfigView) -> None:
        assert isinstance(config.dataset, SeriesData)
        longest = max(len(each) for each in config.dataset.split()[1])
        if self.horizon is not None and self.horizon > longest:
            raise ConfigError(
                f"evaluation.horizon={self.horizon}: only {longest} steps follow the training series; ask for fewer"
            )
        super().check(config)
