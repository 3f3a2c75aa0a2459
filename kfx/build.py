"""From a checked config to objects: the registry. Nothing else constructs anything from a config."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kfx import schema
from kfx.data.dataset import Dataset, folds, preprocess
from kfx.outcomes import ConfigError, DataError
from kfx.regularization import Regularization
from kfx.streams import Streams

_POOL = {
    "digits": 1797,
    "diabetes": 442,
    "boston": 506,
    "wine_red": 1599,
    "wine_white": 4898,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
}
_MOST_OF_A_CLASS = {"digits": 183, "mnist": 6742, "fashion_mnist": 6000, "cifar10": 5000}
_CLASSES = ("swiss_roll", "digits", "mnist", "fashion_mnist", "cifar10")
_CIFAR_BATCH = 10_000
_IMAGES = {"digits": (8, 8), "mnist": (28, 28), "fashion_mnist": (28, 28), "cifar10": (32, 32)}


def training_size(node: Any) -> int:
    """How many training points a dataset node asks for, without reading it; DataError if it has not so many. With some
    classes and n_train null the answer is a bound."""
    if isinstance(node, schema.Table):
        available = _POOL[node.name] - node.n_test
    elif isinstance(node, schema.Cifar10):
        available = _CIFAR_BATCH * len(node.batches)
    else:
        available = _POOL.get(node.name, node.n_train)
    if getattr(node, "classes", None):
        available = min(available, len(node.classes) * _MOST_OF_A_CLASS[node.name])
    wanted = available if node.n_train is None else node.n_train
    if available < 2 or wanted > available:
        parts = f"dataset.n_train={node.n_train}, dataset.n_test={node.n_test}"
        raise DataError(f"{parts}: {node.name} leaves at most {max(available, 0)} training points")
    return wanted


def fold_size(evaluation: schema.EvaluationNode, n: int) -> int:
    """How many of n training points a kernel is trained on: fewer by the largest fold in cross-validation."""
    return n - math.ceil(n / evaluation.folds) if isinstance(evaluation, schema.KFold) else n


def has_classes(node: Any) -> bool:
    """Whether the data set is a classification."""
    return node.name in _CLASSES


def data_files(node: Any) -> list[tuple[str, str]]:
    """(data set, file) for each file that the dataset node needs."""
    from kfx.data.files import FILES

    if isinstance(node, schema.Cifar10):
        return [("cifar10", f"data_batch_{i}") for i in node.batches] + [("cifar10", "test_batch")]
    return [(node.name, file) for file in FILES.get(node.name, ())]


def data_checksums(node: Any) -> dict[str, str]:
    """File name → SHA-256 of each file that the dataset node needs; they must be there."""
    from kfx.data.files import locate
    from kfx.identity import checksums

    return checksums([locate(dataset, name) for dataset, name in data_files(node)])


def parts(config: schema.Config, streams: Streams) -> list[Dataset]:
    """What kernels are trained and judged on: the data set, or its folds, each preprocessed by itself."""
    node, evaluation = config.dataset, config.evaluation
    whole = _loaded(node, streams)
    split = [whole]
    if isinstance(evaluation, schema.KFold):
        split = folds(whole, evaluation.folds, evaluation.shuffle, streams["data"])
    return [preprocess(part, node.preprocess) for part in split]


def dataset(node: Any, streams: Streams) -> Dataset:
    """Load and preprocess. The stream `data` picks subsets and random points."""
    return preprocess(_loaded(node, streams), node.preprocess)


def _loaded(node: Any, streams: Streams) -> Dataset:
    from kfx.data import embedded, images, synthetic, tabular

    rng = streams["data"]
    loaders: dict[str, Callable[[], Dataset]] = {
        "three_bumps": lambda: synthetic.three_bumps(node.n_train, node.n_test, node.points, rng),
        "swiss_roll": lambda: synthetic.swiss_roll(node.n_train, node.n_test, node.variant, tuple(node.t_range)),
        "gp_sample": lambda: synthetic.gp_sample(
            node.n_train,
            node.n_test,
            node.dimensions,
            node.width,
            node.noise,
            kernel(node.kernel, None).gram,
            rng,
            node.function,
        ),
        "noisy_sine": lambda: synthetic.noisy_sine(node.n_train, node.n_test, node.noise, rng),
        "line": lambda: synthetic.line(node.n_train, node.n_test, node.noise, rng),
        "boston": lambda: tabular.boston(node.n_train, node.n_test, rng),
        "wine_red": lambda: tabular.wine("red", node.n_train, node.n_test, rng),
        "wine_white": lambda: tabular.wine("white", node.n_train, node.n_test, rng),
        "digits": lambda: embedded.digits(node.n_train, node.n_test, node.classes, rng),
        "diabetes": lambda: embedded.diabetes(node.n_train, node.n_test, rng),
        "mnist": lambda: images.idx_dataset("mnist", node.n_train, node.n_test, node.classes, rng),
        "fashion_mnist": lambda: images.idx_dataset("fashion_mnist", node.n_train, node.n_test, node.classes, rng),
        "cifar10": lambda: images.cifar10(node.n_train, node.n_test, node.batches, node.classes, rng),
    }
    return loaders[node.name]()


def image_size(node: Any) -> tuple[int, int] | None:
    """Height and width of a data set's images; None for a table of numbers."""
    return _IMAGES.get(node.name)


def kernel(node: Any, image: tuple[int, int] | None) -> Any:
    """The kernel with its configured values, for images of this size; ConfigError names the key that does not fit."""
    from kfx import kernels

    options = {"trainable": node.trainable, "bounds": {k: (v[0], v[1]) for k, v in node.bounds.items()}}
    builders: dict[str, Callable[[], Any]] = {
        "rbf": lambda: kernels.RBF(node.sigma, **options),
        "rational_quadratic": lambda: kernels.RationalQuadratic(node.alpha, node.beta, node.gamma, **options),
        "nngp": lambda: kernels.NNGP(
            node.depth, node.activation, node.weight_variance, node.bias_variance, backend=node.backend, **options
        ),
        "matern": lambda: kernels.Matern(node.sigma, node.nu, **options),
        "laplace": lambda: kernels.Laplace(node.sigma, **options),
        "linear": lambda: kernels.Linear(node.bias_variance, **options),
        "polynomial": lambda: kernels.Polynomial(node.degree, node.gamma, node.bias_variance, **options),
        "sum": lambda: kernels.Sum(_parts(node, image), **options),
        "product": lambda: kernels.Product(_parts(node, image), **options),
        "rbf_network": lambda: kernels.Sum(_parts(node, image), **options),
        "cnngp": lambda: _cnngp(node, image, options),
    }
    try:
        return builders[node.name]()
    except ValueError as error:
        raise ConfigError(f"kernel={node.name}: {error}") from error


def _parts(node: schema.CombinationNode, image: tuple[int, int] | None) -> list[Any]:
    from kfx.kernels import Scaled

    built = [(coefficient, kernel(part, image)) for coefficient, part in node.parts]
    return [part if coefficient is None else Scaled(part, coefficient) for coefficient, part in built]


def _cnngp(node: schema.CNNGPNode, image: tuple[int, int] | None, options: dict[str, Any]) -> Any:
    from kfx.kernels import CNNGP
    from kfx.kernels.architectures import ARCHITECTURES

    if image is None:
        raise ValueError("it takes images, and the data set is a table of numbers; use dataset=digits, mnist, cifar10")
    architecture = ARCHITECTURES[node.architecture](image, node.hidden_weight_multiplier)
    each: Any = [1.0] * architecture.convolutions if node.variances == "per_layer" else 1.0
    return CNNGP(
        architecture,
        np.multiply(node.weight_variance, each),
        np.multiply(node.bias_variance, each),
        variance_scaling=node.variance_scaling,
        engine=node.engine,
        tile_megabytes=node.tile_megabytes,
        **options,
    )


def uses_jax(node: Any) -> bool:
    """Whether a kernel is computed by JAX."""
    if isinstance(node, schema.CombinationNode):
        return any(uses_jax(part) for _, part in node.parts)
    return isinstance(node, schema.NNGPNode)


def check_start(config: schema.Config) -> None:
    """ConfigError if an optimizer that moves parameters starts outside their bounds."""
    start = kernel(config.kernel, image_size(config.dataset))
    if config.kernel.initial in _LENGTHS and "sigma" not in start.parameters:
        raise ConfigError(
            f"kernel.initial={config.kernel.initial}: sets sigma, which kernel={config.kernel.name} does not have; "
            "use rbf, matern or laplace"
        )
    _check_initial_range(config.kernel, start)
    if isinstance(config.dataset, schema.GPSample):
        kernel(config.dataset.kernel, None)
    if isinstance(config.optimizer, schema.FLOWS) and config.interpolation.kernel is not None:
        if config.interpolation.kernel.initial != "explicit" or config.interpolation.kernel.starts != 1:
            raise ConfigError("interpolation.kernel: its parameters are fixed; leave initial and starts out")
        kernel(config.interpolation.kernel, image_size(config.dataset))
    if isinstance(config.optimizer, schema.Bayesian):
        _check_search(config.optimizer, start)
    if isinstance(config.optimizer, schema.Grid):
        _check_grid(config.optimizer, start)
    if isinstance(config.optimizer, schema.SklearnGPR):
        _check_counterpart(config, start)
    unbounded = (schema.Unmoved, schema.Bayesian, schema.Grid, schema.FlowEuler, schema.FlowRK45)
    if isinstance(config.optimizer, unbounded) or config.kernel.initial != "explicit":
        return
    for name, key, value, (low, high) in zip(start.names, start.keys, start.flat, start.bounds, strict=True):
        if not low <= value <= high:
            raise ConfigError(
                f"kernel.{name}={value:g}: optimizer {config.optimizer.name} moves it within [{low:g}, {high:g}]; "
                f"start inside, or set kernel.bounds.{key}=[low,high]"
            )


def _check_grid(node: schema.Grid, start: Any) -> None:
    name = node.parameter or start.names[0]
    if name not in start.names:
        raise ConfigError(f"optimizer.parameter={name}: no trainable parameter; it takes {', '.join(start.names)}")
    low, high = start.bounds[start.names.index(name)]
    if node.bounds is not None and not low <= node.bounds[0] < node.bounds[1] <= high:
        raise ConfigError(
            f"optimizer.bounds={node.bounds}: expected within kernel.bounds of {name}, [{low:g}, {high:g}]"
        )


def _check_counterpart(config: schema.Config, start: Any) -> None:
    from kfx.optimizers.sklearn_gpr import has_counterpart

    if not has_counterpart(start):
        raise ConfigError(
            f"kernel={config.kernel.name}: scikit-learn has no such kernel; optimizer=sklearn_gpr takes rbf, "
            "rational_quadratic, matern and rbf_network"
        )
    if config.kernel.trainable is not None:
        raise ConfigError("kernel.trainable: optimizer=sklearn_gpr fits every parameter; set null")
    if config.regularization.selection != "fixed":
        raise ConfigError(
            f"regularization.selection={config.regularization.selection}: optimizer=sklearn_gpr fits the noise itself; "
            "set fixed"
        )


def _check_initial_range(node: Any, start: Any) -> None:
    if node.initial_range and node.initial != "random" and node.starts == 1:
        raise ConfigError(
            f"kernel.initial_range={node.initial_range}: used with kernel.initial=random or kernel.starts above 1; "
            "set one of them"
        )
    bounds = dict(zip(start.names, start.bounds, strict=True))
    for name, (low, high) in node.initial_range.items():
        within = [bounds[full] for full, key in zip(start.names, start.keys, strict=True) if name in (full, key)]
        if not within:
            raise ConfigError(f"kernel.initial_range.{name}: no trainable parameter; it takes {', '.join(bounds)}")
        if low < within[0][0] or high > within[0][1]:
            raise ConfigError(
                f"kernel.initial_range.{name}=[{low:g}, {high:g}]: expected within kernel.bounds.{name}="
                f"[{within[0][0]:g}, {within[0][1]:g}]"
            )


def _check_search(node: schema.Bayesian, start: Any) -> None:
    from kfx.optimizers.bayesian import search_box

    box = search_box(start.bounds, None if node.bounds is None else (node.bounds[0], node.bounds[1]))
    for key, (low, high) in zip(start.keys, box, strict=True):
        if low >= high:
            raise ConfigError(f"optimizer.bounds={node.bounds}: none of it lies within kernel.bounds.{key}; widen one")


def starting_kernels(config: schema.Config, parts: Sequence[Dataset], streams: Streams) -> list[Any]:
    """The kernel that each part starts from: as configured, drawn, or with a length taken from its training points."""
    return [candidates[0] for candidates in starting_candidates(config, parts, streams)]


def starting_candidates(config: schema.Config, parts: Sequence[Dataset], streams: Streams) -> list[list[Any]]:
    """For each part the kernels to choose its start from: the one that the config describes, then random ones."""
    node, rng = config.kernel, streams["initial_parameters"]
    built = kernel(node, image_size(config.dataset))
    first = random_kernel(built, rng, node) if node.initial == "random" else built
    _check_length(config, built, parts)
    others = [random_kernel(built, rng, node) for _ in range(node.starts - 1)]
    if node.initial not in _LENGTHS:
        return [[first, *others]] * len(parts)
    return [[first.with_parameters(sigma=_LENGTHS[node.initial](part.x_train)), *others] for part in parts]


def _check_length(config: schema.Config, built: Any, parts: Sequence[Dataset]) -> None:
    """DataError where a length taken from the points is none that an optimizer may start from."""
    if config.kernel.initial not in _LENGTHS:
        return
    low, high = built._bounds["sigma"]
    for part in parts:
        length = _LENGTHS[config.kernel.initial](part.x_train)
        if not low <= length <= high:
            raise DataError(
                f"kernel.initial={config.kernel.initial}: gives sigma={length:.3g}, outside kernel.bounds.sigma="
                f"[{low:g}, {high:g}]; norms of unit_norm points do not vary: use mean_squared_distance, or explicit"
            )


def _natural(x: np.ndarray) -> float:
    """σ² = Var ‖x‖: what gives the numbers of Darcy 2020, Tables 5.1 to 5.8, for his σ̂; ch. 5 prints the variance of
    the squared norms."""
    return float(np.std(np.linalg.norm(x.reshape(len(x), -1), axis=1)))


def _mean_squared_distance(x: np.ndarray) -> float:
    """2σ² = mean of ‖x − x'‖² over all pairs, a point with itself among them (Owhadi & Yoo 2019, §8, γ⁻¹ = MSD; Darcy
    2020, §5.0.1, prints 1/2σ² for it)."""
    flat = x.reshape(len(x), -1)
    return math.sqrt(float(np.mean(np.sum((flat - flat.mean(axis=0)) ** 2, axis=1))))


_LENGTHS = {"natural": _natural, "mean_squared_distance": _mean_squared_distance}


def random_kernel(built: Any, rng: np.random.Generator, node: schema.KernelNode) -> Any:
    """The same kernel, its trainable parameters drawn within `initial_range`, or their bounds where that is silent."""
    from kfx.optimizers.space import random_within

    ranges = node.initial_range
    keys = [name if name in ranges else key for name, key in zip(built.names, built.keys, strict=True)]
    box = np.array([ranges.get(key, bound) for key, bound in zip(keys, built.bounds, strict=True)])
    return built.with_flat(random_within(box, rng, node.initial_distribution))


def regularization(node: schema.RegularizationNode) -> Regularization:
    return Regularization(node.value, node.scale)


def candidates(config: schema.Config, scale: str | None = None) -> list[Regularization]:
    """What validation chooses λ from."""
    node = config.regularization
    return [Regularization(float(value), scale or node.scale) for value in node.candidates]


def evaluation_regularizations(config: schema.Config) -> list[Regularization]:
    """The λ of evaluation, one or several: the objective's where the config is silent."""
    own, usual = config.evaluation.regularization, config.regularization
    values = usual.value if own.value in (None, "validation") else own.value
    return [
        Regularization(float(v), own.scale or usual.scale) for v in (values if isinstance(values, list) else [values])
    ]


def scoring(config: schema.Config) -> Any:
    """How predictions are made and judged."""
    from kfx.evaluation import Scoring

    node = config.evaluation
    return Scoring(
        evaluation_regularizations(config),
        own=node.regularization.value is None,
        solver=node.solver,
        rcond=node.rcond,
        variance=node.posterior_variance,
        clip=None if node.clip is None else (node.clip[0], node.clip[1]),
        train_error=node.train_error,
    )


def evaluation_jobs(
    config: schema.Config, parts: Sequence[Dataset], streams: Streams
) -> list[tuple[int, int, np.ndarray]]:
    """(repeat, part, order of its training points) of each evaluation: every fold once, or random orders of the one
    part."""
    from kfx.evaluation import interpolation_order

    node = config.evaluation
    if isinstance(node, schema.KFold):
        whole = node.n_interpolation is None
        rng = streams["evaluation"]
        sizes = [len(part.x_train) for part in parts]
        return [(k, k, np.arange(n) if whole else rng.permutation(n)) for k, n in enumerate(sizes)]
    orders = [interpolation_order(parts[0], node.balanced, streams["evaluation"]) for _ in range(node.repeats)]
    return [(repeat, 0, order) for repeat, order in enumerate(orders)]


def sampler(node: Any, iterations: int) -> Any:
    from kfx import sampling

    common: dict[str, Any] = {"choice": node.choice, "samples": node.samples, "rounding": node.rounding}
    if isinstance(node, schema.LinearSampling):
        return sampling.LinearSampler(node.batch_size, node.start, node.end, iterations, **common)
    if isinstance(node, schema.DynamicSampling):
        return sampling.DynamicSampler(node.batch_size, node.window, node.floor, **common)
    return sampling.FixedSampler(node.batch_size, node.sample_proportion, **common)


def held_out_sampler(node: Any) -> Any:
    """Batches as training has them, with one sample, of a size that does not change."""
    from kfx import sampling

    proportion = getattr(node, "sample_proportion", 0.5)
    return sampling.FixedSampler(node.batch_size, proportion, node.choice, rounding=node.rounding)


def objective(node: Any) -> Callable[..., tuple[float, Any]]:
    from kfx import objectives

    chosen = getattr(objectives, node.name)  # an option is named as its function
    settings = {item.name: getattr(node, item.name) for item in fields(node) if item.name != "name"}
    return partial(chosen, **settings) if settings else chosen


def loss_maker(config: schema.Config) -> Callable[..., Any]:
    """From a kernel and data to the function that parametric optimizers see."""
    from kfx.optimizers import finite_difference
    from kfx.optimizers.loss import Loss

    node = config.optimizer
    makes: Callable[..., Loss] = Loss
    if isinstance(node, schema.FiniteDifference):
        makes = partial(finite_difference.DifferencedLoss, node.step, node.scheme)
    return partial(makes, objective(config.objective), regularization(config.regularization))


def optimizer(config: schema.Config) -> Any:
    """The optimizer, bound to its objective, sampler and λ."""
    from kfx.optimizers import bayesian, gradient, grid, sklearn_gpr, unmoved

    node, loss = config.optimizer, loss_maker(config)
    batches = sampler(config.sampler, node.iterations)
    if isinstance(node, schema.Unmoved):
        return unmoved.Unmoved(loss, batches, node.iterations)
    if isinstance(node, schema.FLOWS):
        return _flow(config, loss, batches)
    if isinstance(node, schema.SklearnGPR):
        return sklearn_gpr.SklearnGPR(loss, batches, node.iterations)
    if isinstance(node, schema.Grid):
        return grid.GridSearch(
            loss,
            batches,
            iterations=node.iterations,
            parameter=node.parameter,
            bounds=None if node.bounds is None else (node.bounds[0], node.bounds[1]),
            points=node.points,
            space=node.space,
            gradient=node.gradient,
        )
    if isinstance(node, schema.Bayesian):
        return bayesian.BayesianOptimization(
            loss,
            batches,
            iterations=node.iterations,
            initial_points=node.initial_points,
            bounds=None if node.bounds is None else (node.bounds[0], node.bounds[1]),
            space=node.space,
            noise=node.noise,
            recheck_threshold=node.recheck_threshold,
            recheck=node.recheck,
        )
    return gradient.GradientDescent(
        loss,
        batches,
        _rule(node),
        iterations=node.iterations,
        space=node.space,
        final=node.final,
        final_window=node.final_window,
        max_reinitializations=node.max_reinitializations,
        redraw=partial(random_kernel, node=config.kernel),
    )


def _rule(node: Any) -> Any:
    """How a gradient becomes a step."""
    from kfx.optimizers import gradient

    name = node.rule if isinstance(node, schema.Hybrid) else node.name
    if name == "nesterov":
        return gradient.Nesterov(node.learning_rate, node.momentum)
    if name == "adam":
        usual = schema.Adam()
        beta1, beta2, epsilon = (getattr(node, key, getattr(usual, key)) for key in ("beta1", "beta2", "epsilon"))
        return gradient.Adam(node.learning_rate, beta1, beta2, epsilon)
    return gradient.SGD(node.learning_rate)


def _flow(config: schema.Config, loss: Any, batches: Any) -> Any:
    from kfx.optimizers import flow
    from kfx.vector_field import Interpolation, StepRule

    node, own, optimizer = config.flow, config.interpolation, config.optimizer
    value = config.regularization.value if own.regularization is None else own.regularization
    interpolation = Interpolation(
        None if own.kernel is None else kernel(own.kernel, image_size(config.dataset)),
        Regularization(value, config.regularization.scale),
        own.solver,
        own.rcond,
    )
    settings = flow.FlowSettings(interpolation, node.field == "complete", node.remove_merged, node.record_layers)
    common = (loss, batches, optimizer.iterations, settings)
    if isinstance(optimizer, schema.FlowRK45):
        return flow.RungeKuttaFlow(
            *common,
            method=optimizer.method,
            rtol=optimizer.rtol,
            atol=optimizer.atol,
            max_evaluations=optimizer.max_evaluations,
        )
    steps: dict[str, Any] = {
        "rule": StepRule(node.step_rule, node.step_size, node.decay_after),
        "over": node.step_over,
        "test_step": node.test_step,
    }
    if isinstance(optimizer, schema.Hybrid):
        return flow.HybridFlow(*common, parameters=_rule(optimizer), space=optimizer.space, **steps)
    return flow.EulerFlow(*common, **steps)


def recorded_layers(config: schema.Config, path: Path, base: Any) -> Any:
    """The layers that a run of this config recorded, read one by one."""
    nothing = torch.zeros(0)
    return optimizer(config).recorded(path, base, loss_maker(config)(base, nothing, nothing))
