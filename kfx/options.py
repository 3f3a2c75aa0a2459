"""What an author of options needs: the decorator, the kinds of fields, and a base class for each family."""

from __future__ import annotations

from kfx.config.fields import flag, number, parameter, ranged, word, words
from kfx.config.metrics import metric
from kfx.config.option import Option, option
from kfx.data.own_options import OwnDataset as DatasetOption
from kfx.data.own_options import OwnRows as TableOption
from kfx.evaluation.options import EvaluationOption
from kfx.experiment.options import DeviceOption
from kfx.flows.options import FlowOption
from kfx.kernels.kernel_option import FormulaOption, KernelOption, NetworkOption
from kfx.objectives.options import ObjectiveOption
from kfx.optimizers.options import OptimizerOption
from kfx.sampling.options import SamplerOption

__all__ = [
    "DatasetOption",
    "DeviceOption",
    "EvaluationOption",
    "FlowOption",
    "FormulaOption",
    "KernelOption",
    "NetworkOption",
    "ObjectiveOption",
    "OptimizerOption",
    "Option",
    "SamplerOption",
    "TableOption",
    "between",
    "count",
    "count_or_null",
    "flag",
    "from_to",
    "metric",
    "not_negative",
    "number",
    "one_of",
    "option",
    "parameter",
    "positive",
    "ranged",
    "signed_parameter",
    "some_of",
    "variance",
    "whole",
    "word",
    "words",
]

# ---- narrower words for `number`, `parameter`, `word` and `words`, as plugins have them


def one_of(default: str, *choices: str, meaning: str) -> str:
    return word(choices, meaning, default=default)


def some_of(default: list[str], *choices: str, meaning: str) -> list[str]:
    return words(default, choices, meaning)


def positive(default: float, meaning: str) -> float:
    return number(default, "> 0", meaning)


def not_negative(default: float, meaning: str) -> float:
    return number(default, ">= 0", meaning)


def between(default: float, low: float, high: float, meaning: str) -> float:
    return number(default, f"> {low} and < {high}", meaning)


def from_to(default: float, low: float, high: float, meaning: str) -> float:
    return number(default, f">= {low} and < {high}", meaning)


def count(default: int, least: int, meaning: str, most: int = 10**9) -> int:
    return number(default, f"whole >= {least}" + (f" and <= {most}" if most < 10**9 else ""), meaning)


def whole(default: int, meaning: str) -> int:
    return number(default, "whole >= 0", meaning)


def count_or_null(default: int | None, least: int, null: str, meaning: str) -> int | None:
    return number(default, f"whole >= {least}", meaning, null=null)


def variance(default: float, low: float, high: float, meaning: str) -> float:
    return parameter(default, low, high, meaning, ">= 0")


def signed_parameter(default: float, low: float, high: float, meaning: str) -> float:
    return parameter(default, low, high, meaning, "")
