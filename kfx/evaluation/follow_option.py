"""The section `follow`: errors of the current kernel during a fit."""

from __future__ import annotations

from kfx.config.choices import CHOSEN
from kfx.config.fields import MOST_REPEATS, Several, is_window, number, ranged, sizes, word
from kfx.config.option import Option, section
from kfx.config.parts import ConfigView
from kfx.outcomes import ConfigError


@section("follow", "errors of the current kernel during a fit, written to flow.csv for a flow, else to follow.csv")
class FollowSection(Option):
    every: int = number(
        0,
        "whole >= 0",
        "number of iterations, or of a flow's layers, between evaluations; 0: none; on own data lambda is then chosen "
        "for the initial kernel and kept, and neither transforms nor simpler kernels are tried",
    )
    last: int = number(
        0, "whole >= 0", "number of last iterations at which the kernel is evaluated as well, at most a tenth of all"
    )
    n_interpolation: list[int] | None = sizes(
        "evaluation.n_interpolation", "N_I of these evaluations; the points hold equal numbers of each class"
    )
    repeats: int = number(
        1, f"whole >= 1 and <= {MOST_REPEATS}", "number of random subsets of interpolation points for each N_I"
    )
    draw: str = word("once | anew", "once: the same subsets at every evaluation; anew: other subsets each time")
    windows: Several = ranged(
        None,
        "a list of [first, last], whole numbers with 1 <= first <= last, or null",
        lambda v: v is None or (isinstance(v, list) and v != [] and all(map(is_window, v))),
        "ranges of iterations, or layers, over whose evaluations statistics are computed",
    )

    def check(self, config: ConfigView) -> None:
        for first, last in self.windows or ():
            if not self._evaluates_within(first, last, config.optimizer.iterations):
                raise ConfigError(
                    f"follow.windows: none of the {config.optimizer.iterations} iterations from {first} to {last} is "
                    "evaluated; set follow.every to at most the window's length, or another window"
                )
        if self.every + self.last and (how := config.evaluation.regularization.value) in CHOSEN:
            raise ConfigError(
                f"evaluation.regularization.value={how}: would be chosen anew at every evaluation on the way; set "
                "follow.every=0 and follow.last=0, or a number"
            )

    def _evaluates_within(self, first: int, last: int, iterations: int) -> bool:
        last, of_end = min(last, iterations), min(self.last, max(iterations // 10, 1))
        is_due = bool(self.every) and first <= last // self.every * self.every
        is_at_end = self.every + self.last > 0 and last > iterations - max(of_end, 1)
        return first <= last and (is_due or is_at_end)
