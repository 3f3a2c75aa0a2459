"""The schema of a config: one dataclass a group option, each field with its type, default and range."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kfx.data.dataset import STEPS
from kfx.regression import SOLVERS
from kfx.regularization import SCALES
from kfx.sampling import CHOICES
from kfx.vector_field import METHODS

FORMATS = ("png", "pdf", "svg")
"""Of pictures."""


class FieldError(ValueError):
    """One field of a node is wrong: what it got and what it accepts."""

    def __init__(self, name: str, got: Any, accepts: str) -> None:
        super().__init__(f"{name}={got}: expected {accepts}")


def _ranged(default: Any, accepts: str, test: Callable[[Any], bool]) -> Any:
    metadata = {"accepts": accepts, "test": test}
    if isinstance(default, (list, dict)):
        return field(default_factory=lambda: default.copy(), metadata=metadata)
    return field(default=default, metadata=metadata)


_MOST_POINTS = 10_000_000
_MOST_REPEATS = 10_000
"""Larger numbers are slips, and would only show after memory or a life had gone by."""


def _positive(default: float) -> Any:
    return _ranged(default, "a number > 0", lambda v: math.isfinite(v) and v > 0)


def _not_negative(default: float) -> Any:
    return _ranged(default, "a number >= 0", lambda v: math.isfinite(v) and v >= 0)


def _between(default: float, low: float, high: float) -> Any:
    return _ranged(default, f"a number > {low} and < {high}", lambda v: low < v < high)


def _count(default: int, least: int = 1, most: int = 10**9) -> Any:
    return _ranged(default, f"a whole number >= {least} and <= {most}", lambda v: least <= v <= most)


def _count_or_all(default: int | None, least: int, meaning: str) -> Any:
    return _ranged(
        default, f"a whole number >= {least}, or null for {meaning}", lambda v: v is None or least <= v <= 10**9
    )


def _one_of(default: str, *options: str) -> Any:
    return _ranged(default, f"one of {', '.join(options)}", lambda v: v in options)


def _some_of(default: list[str], *options: str) -> Any:
    return _ranged(default, f"a list out of {', '.join(options)}", lambda v: all(item in options for item in v))


def _flag(default: bool) -> Any:
    return _ranged(default, "true or false", lambda v: True)


def _seed(default: int) -> Any:
    return _ranged(default, "a whole number >= 0", lambda v: v >= 0)


@dataclass
class Node:
    """A part of the config. Creating one checks every field against its range."""

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            try:
                good = "test" not in item.metadata or item.metadata["test"](value)
            except TypeError:  # a list where a word belongs, or the like
                good = False
            if not good:
                raise FieldError(item.name, value, item.metadata["accepts"])


# ---- dataset


@dataclass
class DatasetNode(Node):
    name: str = ""
    preprocess: list[str] = _some_of([], *STEPS)


@dataclass
class ThreeBumps(DatasetNode):
    n_train: int = _count(100, 2, _MOST_POINTS)
    n_test: int = _count(200, 1, _MOST_POINTS)
    points: str = _one_of("grid", "grid", "random")


@dataclass
class SwissRoll(DatasetNode):
    n_train: int = _count(120, 2, _MOST_POINTS)
    n_test: int = _count(200, 1, _MOST_POINTS)
    variant: str = _one_of("symmetric", "symmetric", "darcy", "khalid")
    t_range: list[float] = _ranged(
        [math.pi / 2, 5 * math.pi / 2],
        "two rising numbers",
        lambda v: len(v) == 2 and -math.inf < v[0] < v[1] < math.inf,
    )


@dataclass
class GPSample(DatasetNode):
    n_train: int = _count(100, 2, 20_000)  # the eigenvalues of their Gram matrix are computed
    n_test: int = _count(100, 1, 20_000)
    dimensions: int = _count(1, 1, 10_000)
    width: float = _positive(20.0)
    function: str = _one_of("sample", "sample", "kernel")
    noise: float = _not_negative(0.0)
    kernel: Any = _ranged(None, "a kernel: name and parameters", lambda v: isinstance(v, (dict, KernelNode)))


@dataclass
class NoisyCurve(DatasetNode):
    n_train: int = _count(100, 2, _MOST_POINTS)
    n_test: int = _count(200, 1, _MOST_POINTS)
    noise: float = _not_negative(0.1)


@dataclass
class Table(DatasetNode):
    n_train: int | None = _count_or_all(None, 2, "all that are not test points")
    n_test: int = _count(100, 0)


def _classes() -> Any:
    return _ranged(
        None,
        "two or more different numbers from 0 to 9, or null for all",
        lambda v: v is None or (all(isinstance(i, int) and 0 <= i <= 9 for i in v) and len(set(v)) == len(v) > 1),
    )


@dataclass
class Digits(Table):
    classes: list[int] | None = _classes()


@dataclass
class Images(DatasetNode):
    n_train: int | None = _count_or_all(None, 2, "all")
    n_test: int | None = _count_or_all(None, 1, "all")
    classes: list[int] | None = _classes()


@dataclass
class Cifar10(Images):
    batches: list[int] = _ranged(
        [1, 2, 3, 4, 5],
        "a list of different numbers from 1 to 5",
        lambda v: len(v) > 0 and len(set(v)) == len(v) and all(1 <= i <= 5 for i in v),
    )


# ---- kernel


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_not_negative(value: Any) -> bool:
    return _is_number(value) and value >= 0


def _is_range(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(_is_number(v) for v in pair) and 0 <= pair[0] < pair[1]


@dataclass
class KernelNode(Node):
    name: str = ""
    initial: str = _one_of("explicit", "explicit", "random", "natural", "mean_squared_distance")
    initial_range: dict = _ranged(
        {}, "parameter: [low, high] with 0 <= low < high", lambda v: all(_is_range(pair) for pair in v.values())
    )
    initial_distribution: str = _one_of("log_uniform", "log_uniform", "uniform")
    starts: int = _count(1, 1, _MOST_REPEATS)
    start_from: str = _one_of("best", "best", "worst")
    trainable: list[str] | None = _ranged(
        None,
        "a list of parameters, or null for the usual ones",
        lambda v: v is None or (v != [] and all(isinstance(name, str) for name in v)),
    )
    # OmegaConf 2.3 cannot convert numbers inside a typed dict of lists, so the test looks at them itself.
    bounds: dict = _ranged(
        {}, "parameter: [low, high] with 0 <= low < high", lambda v: all(_is_range(pair) for pair in v.values())
    )


@dataclass
class RBFNode(KernelNode):
    sigma: float = _positive(1.0)


@dataclass
class RationalQuadraticNode(KernelNode):
    alpha: float = _positive(1.0)
    beta: float = _positive(1.0)
    gamma: float = _positive(1.0)


@dataclass
class MaternNode(KernelNode):
    sigma: float = _positive(1.0)
    nu: float = _ranged(1.5, "0.5, 1.5 or 2.5", lambda v: v in (0.5, 1.5, 2.5))


@dataclass
class LaplaceNode(KernelNode):
    sigma: float = _positive(1.0)


@dataclass
class LinearNode(KernelNode):
    bias_variance: float = _not_negative(1.0)


@dataclass
class PolynomialNode(KernelNode):
    degree: int = _count(3, 1, 1000)
    gamma: float = _positive(1.0)
    bias_variance: float = _not_negative(1.0)


@dataclass
class CombinationNode(KernelNode):
    """parts: kernels by name and parameters, each with a `coefficient` c, for c² K, where one is wanted."""

    parts: Any = _ranged(None, "a list of kernels: name and parameters", lambda v: isinstance(v, list) and len(v) > 0)


@dataclass
class NNGPNode(KernelNode):
    depth: int = _count(3, 0, 10_000)
    activation: str = _one_of("relu", "relu", "erf")
    weight_variance: float = _not_negative(1.0)
    bias_variance: float = _not_negative(0.1)
    backend: str | None = _ranged(
        None,
        "one of neural_tangents, native, or null for the first that imports",
        lambda v: v in (None, "neural_tangents", "native"),
    )


@dataclass
class CNNGPNode(KernelNode):
    architecture: str = _one_of("simple", "simple", "convnet", "convnet_cifar", "resnet")
    variances: str = _one_of("shared", "shared", "per_layer")
    weight_variance: float = _not_negative(1.0)
    bias_variance: float = _not_negative(0.1)
    variance_scaling: str = _one_of("fan_in", "fan_in", "weight")
    hidden_weight_multiplier: float = _positive(1.0)
    engine: str = _one_of("auto", "auto", "fused", "torch")
    tile_megabytes: float = _positive(32.0)


# ---- objective, sampler


@dataclass
class ObjectiveNode(Node):
    name: str = ""


@dataclass
class RhoPrediction(ObjectiveNode):
    form: str = _one_of("relative_error", "relative_error", "consistent", "printed")


@dataclass
class NLL(ObjectiveNode):
    scale: str = _one_of("one", "one", "profiled")


@dataclass
class SamplerNode(Node):
    name: str = ""
    batch_size: int | None = _count_or_all(100, 2, "all training points")
    choice: str = _one_of("uniform", *CHOICES)
    rounding: str = _one_of("nearest", "nearest", "up")
    samples: int = _count(1, 1, _MOST_REPEATS)


@dataclass
class FixedSampling(SamplerNode):
    sample_proportion: float = _between(0.5, 0, 1)


@dataclass
class LinearSampling(SamplerNode):
    start: float = _between(0.1, 0, 1)
    end: float = _between(0.5, 0, 1)


@dataclass
class DynamicSampling(SamplerNode):
    window: int = _count(10, 1, _MOST_POINTS)
    floor: float = _between(0.05, 0, 0.5)


# ---- optimizer


@dataclass
class OptimizerNode(Node):
    name: str = ""
    iterations: int = _count(100)


@dataclass
class Unmoved(OptimizerNode):
    pass


@dataclass
class GradientNode(OptimizerNode):
    learning_rate: float = _positive(0.1)
    space: str = _one_of("log", "raw", "log")
    final: str = _one_of("last", "last", "best")
    final_window: int = _count(10)
    max_reinitializations: int = _count(3, 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.final == "best" and self.final_window > self.iterations:
            raise FieldError("final_window", self.final_window, f"at most iterations={self.iterations} with final=best")


@dataclass
class SGD(GradientNode):
    pass


@dataclass
class Nesterov(GradientNode):
    momentum: float = _ranged(0.9, "a number >= 0 and < 1", lambda v: 0 <= v < 1)


@dataclass
class Adam(GradientNode):
    beta1: float = _ranged(0.9, "a number >= 0 and < 1", lambda v: 0 <= v < 1)
    beta2: float = _ranged(0.999, "a number >= 0 and < 1", lambda v: 0 <= v < 1)
    epsilon: float = _positive(1e-8)


@dataclass
class FiniteDifference(GradientNode):
    step: float = _positive(1e-4)
    scheme: str = _one_of("forward", "forward", "central")


@dataclass
class Bayesian(OptimizerNode):
    initial_points: int = _count(15)
    bounds: list[float] | None = _ranged(
        [0.25, 200.0],
        "two rising numbers >= 0, or null for kernel.bounds",
        lambda v: v is None or (len(v) == 2 and 0 <= v[0] < v[1] < math.inf),
    )
    space: str = _one_of("raw", "raw", "log")
    noise: Any = _ranged(
        1e-10, "a number > 0, or gaussian to have it estimated", lambda v: v == "gaussian" or (_is_number(v) and v > 0)
    )
    recheck: str = _one_of("two_sided", "two_sided", "one_sided")
    recheck_threshold: float = _not_negative(0.1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.space == "log" and self.bounds is not None and self.bounds[0] == 0:
            raise FieldError("bounds", self.bounds, "a lower bound > 0 with space=log")


@dataclass
class Grid(OptimizerNode):
    parameter: str | None = _ranged(None, "the name of a trainable parameter, or null for the first", lambda v: v != "")
    bounds: list[float] | None = _ranged(
        None,
        "two rising numbers >= 0, or null for kernel.bounds",
        lambda v: v is None or (len(v) == 2 and 0 <= v[0] < v[1] < math.inf),
    )
    points: int = _count(100, 2)
    space: str = _one_of("raw", "raw", "log")
    gradient: bool = _flag(True)


@dataclass
class SklearnGPR(OptimizerNode):
    pass


@dataclass
class FlowEuler(OptimizerNode):
    pass


@dataclass
class Hybrid(OptimizerNode):
    rule: str = _one_of("sgd", "sgd", "nesterov", "adam")
    learning_rate: float = _positive(0.1)
    momentum: float = _ranged(0.9, "a number >= 0 and < 1", lambda v: 0 <= v < 1)
    space: str = _one_of("raw", "raw", "log")


@dataclass
class FlowRK45(OptimizerNode):
    method: str = _one_of("RK45", *METHODS)
    rtol: float = _positive(1e-3)
    atol: float = _positive(1e-6)
    max_evaluations: int = _count(20000)


FLOWS = (FlowEuler, FlowRK45, Hybrid)


# ---- regularization, evaluation, device


@dataclass
class RegularizationNode(Node):
    value: float = _not_negative(1e-4)
    scale: str = _one_of("centered", *SCALES)
    selection: str = _one_of("fixed", "fixed", "validation", "trained")
    candidates: list[float] = _ranged(
        [1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0],
        "a list of numbers > 0",
        lambda v: len(v) > 0 and all(_is_number(x) and x > 0 for x in v),
    )
    folds: int = _count(5, 2)
    points: int | None = _count_or_all(1000, 4, "all training points")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.selection == "trained" and self.value == 0:
            raise FieldError("value", self.value, "a number > 0 to start from with selection=trained")
        if self.points is not None and self.points < 2 * self.folds:
            raise FieldError("points", self.points, f"at least twice folds={self.folds}")


@dataclass
class EvaluationRegularization(Node):
    """null: the same as the objective's. `value` may hold several: each is evaluated. `validation`: chosen for each
    kernel among `regularization.candidates`."""

    value: Any = _ranged(
        None,
        "a number >= 0, a list of them, validation, or null for the objective's",
        lambda v: (
            v in (None, "validation")
            or (v != [] and all(_is_not_negative(x) for x in (v if isinstance(v, list) else [v])))
        ),
    )
    scale: str | None = _ranged(
        None, f"one of {', '.join(SCALES)}, or null for regularization.scale", lambda v: v is None or v in SCALES
    )


@dataclass
class EvaluationNode(Node):
    name: str = ""
    n_interpolation: list[int] | None = _ranged(
        None,
        "a list of different whole numbers >= 1, or null for all training points",
        lambda v: v is None or (0 < len(v) == len(set(v)) and all(n >= 1 for n in v)),
    )
    random_kernels: int = _count(0, 0, _MOST_REPEATS)
    batches: int = _count(10, 0, _MOST_REPEATS)
    regularization: EvaluationRegularization = field(default_factory=EvaluationRegularization)
    solver: str = _one_of("cholesky", *SOLVERS)
    rcond: float | None = _ranged(
        None, "a number > 0 and < 1 (with solver=lstsq), or null", lambda v: v is None or 0 < v < 1
    )
    clip: list[float] | None = _ranged(
        None,
        "[lowest, highest] that a prediction may be, or null",
        lambda v: v is None or (len(v) == 2 and v[0] < v[1]),
    )
    train_error: bool = _flag(False)
    posterior_variance: bool = _flag(False)
    save_predictions: bool = _flag(False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rcond is not None and self.solver != "lstsq":
            raise FieldError("rcond", self.rcond, f"null with solver={self.solver}; only lstsq cuts eigenvalues off")
        if self.posterior_variance and self.solver != "cholesky":
            raise FieldError("posterior_variance", True, f"false with solver={self.solver}; it needs cholesky")


@dataclass
class TestPoints(EvaluationNode):
    repeats: int = _count(1, 1, _MOST_REPEATS)
    balanced: bool = _flag(False)


@dataclass
class KFold(EvaluationNode):
    folds: int = _count(5, 2)
    shuffle: bool = _flag(False)


@dataclass
class DeviceNode(Node):
    name: str = "cpu"
    dtype: str = _one_of("float64", "float32", "float64")
    threads: int | None = _ranged(
        None, "a whole number from 1 to 1024, or null for all cores", lambda v: v is None or 1 <= v <= 1024
    )
    allow_tf32: bool = _flag(False)
    precision_check: Any = _one_of("warn", "off", "warn", "strict")

    def __post_init__(self) -> None:
        if self.precision_check is False:  # YAML reads a bare `off` as false
            self.precision_check = "off"
        super().__post_init__()


@dataclass
class CheckpointNode(Node):
    seconds: float = _not_negative(30.0)
    iterations: int = _count(0, 0)


@dataclass
class FlowNode(Node):
    """What the flows have in common; nothing else reads it."""

    field: str = _one_of("original", "original", "complete")
    step_rule: str = _one_of("relative", "relative", "absolute", "constant")
    step_size: float = _positive(0.01)
    step_over: str = _one_of("batch", "batch", "all")
    decay_after: int | None = _count_or_all(None, 1, "no decay")
    test_step: str = _one_of("train", "train", "test", "min")
    remove_merged: float = _not_negative(0.0)
    record_layers: bool = _flag(False)
    evaluate_every: int = _count(0, 0)
    evaluate_last: int = _count(0, 0)
    n_interpolation: list[int] | None = _ranged(
        None,
        "a list of different whole numbers >= 1, or null for evaluation.n_interpolation",
        lambda v: v is None or (0 < len(v) == len(set(v)) and all(n >= 1 for n in v)),
    )
    repeats: int = _count(1, 1, _MOST_REPEATS)
    snapshots: int = _count(50, 0, 100_000)
    snapshot_points: int = _count(300)


@dataclass
class InterpolationNode(Node):
    """How a batch's velocities become a field. null: the kernel itself, and `regularization.value`."""

    kernel: Any = _ranged(
        None, "a kernel: name and parameters, or null", lambda v: v is None or isinstance(v, (dict, KernelNode))
    )
    regularization: float | None = _ranged(
        None, "a number >= 0, or null for regularization.value", lambda v: v is None or _is_not_negative(v)
    )
    solver: str = _one_of("cholesky", *SOLVERS)
    rcond: float | None = _ranged(
        None, "a number > 0 and < 1 (with solver=lstsq), or null", lambda v: v is None or 0 < v < 1
    )


@dataclass
class Published(Node):
    """What a paper printed for this experiment."""

    metric: str = ""
    value: float = 0.0
    source: str = ""


@dataclass
class Config:
    """A whole run. Each group holds the node that its `name` chooses from `OPTIONS`."""

    dataset: Any
    kernel: Any
    objective: Any
    sampler: Any
    optimizer: Any
    evaluation: Any
    device: DeviceNode
    regularization: RegularizationNode
    checkpoint: CheckpointNode
    flow: FlowNode
    interpolation: InterpolationNode
    seed: int = _seed(0)
    published: list[Published] = field(default_factory=list)
    kernel_check: bool = False
    resume: bool = False
    figures: list[str] = field(default_factory=lambda: ["png"])
    retries: int = 0


OPTIONS: dict[str, dict[str, type[Node]]] = {
    "dataset": {
        "three_bumps": ThreeBumps,
        "swiss_roll": SwissRoll,
        "gp_sample": GPSample,
        "noisy_sine": NoisyCurve,
        "line": NoisyCurve,
        "digits": Digits,
        "diabetes": Table,
        "boston": Table,
        "wine_red": Table,
        "wine_white": Table,
        "mnist": Images,
        "fashion_mnist": Images,
        "cifar10": Cifar10,
    },
    "kernel": {
        "rbf": RBFNode,
        "rational_quadratic": RationalQuadraticNode,
        "matern": MaternNode,
        "laplace": LaplaceNode,
        "linear": LinearNode,
        "polynomial": PolynomialNode,
        "sum": CombinationNode,
        "product": CombinationNode,
        "rbf_network": CombinationNode,
        "nngp": NNGPNode,
        "cnngp": CNNGPNode,
    },
    "objective": {
        "rho": ObjectiveNode,
        "rho_polarized": ObjectiveNode,
        "rho_prediction": RhoPrediction,
        "interpolation_error": ObjectiveNode,
        "nll": NLL,
        "loo": ObjectiveNode,
    },
    "sampler": {"fixed": FixedSampling, "linear": LinearSampling, "dynamic": DynamicSampling},
    "optimizer": {
        "none": Unmoved,
        "sgd": SGD,
        "nesterov": Nesterov,
        "adam": Adam,
        "finite_difference": FiniteDifference,
        "bayesian": Bayesian,
        "grid": Grid,
        "sklearn_gpr": SklearnGPR,
        "flow_euler": FlowEuler,
        "flow_rk45": FlowRK45,
        "hybrid": Hybrid,
    },
    "evaluation": {"default": TestPoints, "k_fold": KFold},
    "device": {"cpu": DeviceNode, "cuda": DeviceNode, "auto": DeviceNode},
}
NETWORK_PARTS = ("rbf", "rational_quadratic")
SINGLE: dict[str, type[Node]] = {
    "regularization": RegularizationNode,
    "checkpoint": CheckpointNode,
    "flow": FlowNode,
    "interpolation": InterpolationNode,
    "published": Published,
}
