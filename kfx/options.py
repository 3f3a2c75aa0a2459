"""What an author of options needs: the decorator, the kinds of fields, and a base class for each family."""

from __future__ import annotations

from kfx.config.fields import (
    between,
    count,
    count_or_null,
    flag,
    from_to,
    not_negative,
    one_of,
    parameter,
    positive,
    ranged,
    signed_parameter,
    some_of,
    variance,
    whole,
)
from kfx.config.option import Option, option
from kfx.data.options import DatasetOption, TableOption
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
    "not_negative",
    "one_of",
    "option",
    "parameter",
    "positive",
    "ranged",
    "signed_parameter",
    "some_of",
    "variance",
    "whole",
]
