"""Numbers that papers print for an experiment, as its config lists them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kfx.config.fields import is_window, number, one_of, ranged
from kfx.config.nodes import make
from kfx.config.option import Option
from kfx.outcomes import ConfigError


@dataclass
class Quantity(Option):
    """A quantity that a run measures."""

    metric: str = ranged("", "text", lambda v: v != "", "name of the metric or parameter: accuracy, mse, error, …")
    kernel: str = one_of("trained", "initial", "trained", meaning="kernel to which the number belongs")
    n_interpolation: int | None = number(None, "whole >= 1", "N_I at which the number was measured", null="the largest")
    statistic: str = one_of(
        "mean", "mean", "sd", "se", "min", "max", meaning="statistic over folds, repeats, layers or seeds"
    )
    window: Any = ranged(  # noqa: RUF009
        None,
        "[first, last], whole numbers with 1 <= first <= last, or null",
        lambda v: v is None or is_window(v),
        "window of follow.windows for which the number is; null: the end of the fit",
    )

    @property
    def place(self) -> tuple[str, str, int | None, str, str | None]:
        """Metric, kernel, N_I, statistic and window, as tables of measurements have them."""
        window = None if self.window is None else "-".join(map(str, self.window))
        return self.metric, self.kernel, self.n_interpolation, self.statistic, window


@dataclass
class Published(Quantity):
    """A number that a paper prints for an experiment; value null: a curve without printed numbers."""

    value: float | None = ranged(
        0.0, "a number or null", lambda v: True, "number that the paper prints; null: only a picture shows it"
    )
    source: str = ranged("", "text", lambda v: True, "paper, table or figure, row")
    overrides: list[str] = field(
        default_factory=list, metadata={"meaning": "overrides of the experiment that give the number's setting"}
    )


def published(path: str, value: object) -> list[Published]:
    """The entries of a config's key `published`; ConfigError if there is anything else."""
    if value is None:
        return []
    if isinstance(value, Mapping):  # one entry without a list: records of version 0.1
        return [make(path, Published, _modern(value))]
    if not isinstance(value, list):
        raise ConfigError(f"{path}={value}: expected a list of {{metric: …, value: …, source: …}}, or null")
    return [make(f"{path}[{i}]", Published, _modern(entry)) for i, entry in enumerate(value)]


def _modern(entry: object) -> object:
    """Convert an entry of version 0.1, where the kernel was part of the metric."""
    suffix = " of the initial kernel"
    if isinstance(entry, Mapping) and str(entry.get("metric", "")).endswith(suffix):
        return {**entry, "metric": str(entry["metric"]).removesuffix(suffix), "kernel": "initial"}
    return entry
