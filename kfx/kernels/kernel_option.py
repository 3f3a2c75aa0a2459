"""Base classes of the kernel options in `kfx.kernels.options`: for any kernel, a network's features, and a formula."""

from __future__ import annotations

import abc
import inspect
import math
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Unpack

from kfx.config.fields import MOST_REPEATS, flag, number, parameter, ranged, word
from kfx.config.option import Option, Settings
from kfx.config.parts import ConfigView, KernelPart
from kfx.config.rules import NO_IMAGES, needs, refuses, rows
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    import torch

    from kfx.kernels.base import Kernel
    from kfx.kernels.parameters import Training

Image = tuple[int, ...] | None
"""Height and width of the data set's images and, where it is not 1, the number of channels; None for a table."""


LENGTHS = ("natural", "mean_squared_distance", "median_distance")
"""Ways to take a length from the training points: `kfx.kernels.starts`."""
RANDOM = ("random", "partly_random")
"""Ways to draw initial parameters: `kfx.kernels.starts`."""


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_range(pair: object) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(map(is_number, pair)) and pair[0] < pair[1]


def _ranges(meaning: str) -> dict:
    # OmegaConf 2.3 cannot convert numbers inside a typed dict of lists, so the test looks at them itself.
    takes = "parameter: [low, high] with low < high, and 0 <= low unless it is signed"
    return ranged({}, takes, lambda v: all(map(_is_range, v.values())), meaning)


@dataclass
class KernelOption(Option, KernelPart):
    """Base of the kernel options. A subclass has a field for each parameter and setting, and `builds` or `make`."""

    initial: str = word(
        ("explicit", *RANDOM, *LENGTHS),
        "initial parameters; explicit: as given here; random: drawn by seed; partly_random: those in "
        "initial_range drawn, the others as given; for the length sigma (beta, lengths), natural: sigma^2 = Var |x|; "
        "mean_squared_distance: 2 sigma^2 = mean |x - x'|^2; median_distance: sigma = median |x - x'|",
    )
    initial_range: dict = _ranges("range in which random initial parameters are drawn; bounds where not given")
    initial_distribution: str = word(
        "log_uniform | uniform", "distribution of random initial parameters in their range"
    )
    starts: int = number(
        1,
        f"whole >= 1 and <= {MOST_REPEATS}",
        "number of initial kernels to choose from: one as initial says, the others random",
    )
    start_from: str = word(
        "best | worst",
        "initial kernel to train; best: least mean objective on separate batches; worst: largest error in evaluation",
    )
    trainable: list[str] | None = ranged(
        None,
        "a list of parameters",
        lambda v: v != [] and all(isinstance(name, str) for name in v),
        "parameters that the optimizer trains",
        null="the usual ones",
    )
    bounds: dict = _ranges("range of each parameter during training, and of random initial ones")

    uses_jax: ClassVar[bool] = False
    """Whether JAX computes the kernel."""

    @classmethod
    def default_bounds(cls) -> dict[str, tuple[float, float]]:
        """Return the range of each parameter in optimization, by name."""
        return {k: item.metadata["bounds"] for k, item in cls.fields().items() if "bounds" in item.metadata}

    def own_bounds(self) -> set[str]:
        """Return the parameters whose bounds are not the default ones."""
        usual = self.default_bounds()
        return {name for name, pair in self.bounds.items() if name not in usual or tuple(pair) != usual[name]}

    @classmethod
    def defaults(cls) -> Settings:
        return {**super().defaults(), "bounds": {name: list(pair) for name, pair in cls.default_bounds().items()}}

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        """Return the kernel. common: `trainable` and `bounds`, as for every kernel."""
        return self.constructor()(**self.beyond(KernelOption), **common)

    def build(self, image: Image) -> Kernel:
        """Return the kernel with its configured values, for images of this size.

        Raises ConfigError where the data set has no images and the kernel needs them, or a value is not accepted.
        """
        if self.images_only and image is None:
            raise ConfigError(
                f"kernel={self.name}: it takes images, and the data set is a table of numbers; use dataset=digits, "
                "mnist, cifar10"
            )
        try:
            return self.make(image, trainable=self.trainable, bounds={k: (v[0], v[1]) for k, v in self.bounds.items()})
        except ValueError as error:
            raise ConfigError(f"kernel={self.name}: {error}") from error

    def own_threads(self) -> bool:
        """Return whether the kernel uses all threads for batches of any size."""
        return False

    def draws_blocks(self) -> bool:
        """Return whether the weights of the kernel's network are drawn by seed, however its other parameters start."""
        return False

    def check(self, config: ConfigView) -> None:
        if self.start_from == "worst" and self.starts == 1:
            raise ConfigError("kernel.start_from=worst: chooses among several starts; set kernel.starts above 1")
        if self.initial == "partly_random" and not self.initial_range:
            raise ConfigError("kernel.initial=partly_random: needs kernel.initial_range, which names what is drawn")

    def check_device(self, name: str, device: torch.device) -> None:
        """Raise ConfigError where the kernel cannot be computed on a device. name: the device as configured."""

    def set_by_points(self, kernel: Kernel) -> set[str | None]:
        """Return the parameters of the kernel as built whose initial values wait for the training points."""
        return {kernel.length} if self.initial in LENGTHS else set()

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        """Raise ConfigError where the configured start does not fit the kernel as built."""
        if self.initial in LENGTHS and kernel.length is None:
            raise ConfigError(
                f"kernel.initial={self.initial}: sets a length, which kernel={self.name} does not have; use rbf, "
                "matern, laplace or rational_quadratic"
            )
        if self.initial_range and self.initial not in RANDOM and self.starts == 1:
            raise ConfigError(
                f"kernel.initial_range={self.initial_range}: used with kernel.initial={' or '.join(RANDOM)}, or "
                "kernel.starts above 1; set one of them"
            )
        pairs = list(zip(kernel.names, kernel.keys, kernel.bounds, strict=True)) if self.initial_range else []
        for name, (low, high) in self.initial_range.items():
            within = [bound for full, key, bound in pairs if name in (full, key)]
            if not within:
                known = kernel.trainable if kernel.are_many else kernel.names
                raise ConfigError(f"kernel.initial_range.{name}: not a trainable parameter; takes {', '.join(known)}")
            if low < within[0][0] or high > within[0][1]:
                raise ConfigError(
                    f"kernel.initial_range.{name}=[{low:g}, {high:g}]: expected within kernel.bounds.{name}="
                    f"[{within[0][0]:g}, {within[0][1]:g}]"
                )


@dataclass
class ARDOption(KernelOption):
    """Base of kernels that can have a length for each feature."""

    rules = rows(needs(NO_IMAGES, "set it to false", "ard"))
    implied = {"ard": False}  # noqa: RUF012

    ard: bool | None = flag(
        False,
        "a length for each feature of a table, `lengths`; for nngp and ntk they scale the weights of the first layer",
        null="false",
    )

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        if not self.ard:
            return self.constructor()(**self.beyond(ARDOption), **common)
        from kfx.kernels.ard import ARD

        bounds = dict(common["bounds"] or {})
        own = bounds.pop("lengths", None)
        inner = self.constructor()(**self.beyond(ARDOption), bounds=bounds)
        if inner.length is not None:
            own = own or inner.limits[inner.length]
        start = 1.0 if inner.length is None else inner.parameters[inner.length]
        return ARD(inner, start, bounds={"lengths": own} if own else None, trainable=common["trainable"])


POINTS_FOR_A_LENGTH = 20
"""Training points for each feature from which lengths help to classify, and from which they are not compared with one
length: on tables of UCI (docs/tables.md)."""
_POINTS_TO_COMPARE = 2
"""Training points for each feature from which lengths are trained for a regression, and compared with one length."""


def _has_points_for_lengths(config: ConfigView) -> bool:
    """Whether a length for each feature can be trained: with exact gradients and enough points."""
    width = config.dataset.feature_count()
    if width is None or config.dataset.image is not None or not config.optimizer.follows_gradients:
        return False
    try:
        each = POINTS_FOR_A_LENGTH if config.dataset.has_classes else _POINTS_TO_COMPARE
        return bool(config.training_size() >= each * width)
    except DataError:  # the check of the config says more
        return False


def a_length() -> float | None:
    """The field of a kernel's length."""
    return parameter(
        None, 1e-4, 1e4, "length scale, in the units of x", null="1; for own data the median distance of two points"
    )


@dataclass
class DistanceOption(ARDOption):
    """Base of kernels of the distance of two points, with a length."""

    ard: bool | None = flag(
        None,
        "a length for each feature of a table, `lengths`, in place of one for all",
        null="true with own data and exact gradients if neither a length nor initial nor trainable is given, and there "
        "are 2 training points for each feature, for classes 20",
    )

    length: ClassVar[str] = "sigma"
    """The field of its length."""

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        if getattr(self, self.length) is not None:
            return super().make(image, **common)
        unit = copy(self)
        setattr(unit, self.length, 1.0)
        return unit.make(image, **common)

    def length_is_free(self) -> bool:
        return getattr(self, self.length) is None and self.initial == "explicit" and not self.ard

    def takes_length_from_points(self, config: ConfigView) -> bool:
        return bool(config.dataset.is_own and getattr(self, self.length) is None and self.initial == "explicit")

    def settled(self, config: ConfigView) -> Settings:
        changes = super().settled(config)
        if self.length_is_free() and (usual := config.dataset.usual_length()) is not None:
            return {**changes, self.length: usual, "ard": False}
        from_data = self.takes_length_from_points(config)
        changes |= {self.length: 1.0} if getattr(self, self.length) is None else {}
        if from_data:
            changes["initial"] = "median_distance"
        if self.ard is None:
            changes["ard"] = (
                from_data and "lengths" in (self.trainable or ["lengths"]) and _has_points_for_lengths(config)
            )
        return changes


@dataclass
class NetworkOption(KernelOption, abc.ABC):
    """A Gaussian kernel on the features of a network. A subclass gives the network by `module`; its fields are the
    network's settings."""

    builds = "kfx.kernels.network_features:NetworkFeatures"
    has_network = True
    rules = rows(refuses(lambda _, c: c.device.dtype != "float32", "needs device.dtype=float32", "mixed_precision"))
    implied = {**KernelOption.implied, "dropout": 0.0}  # noqa: RUF012

    initial: str = word(
        "random | explicit", "initial weights; random: drawn by seed; explicit: those of the module as built"
    )
    gamma: float = parameter(
        0.0,
        1e-8,
        1e8,
        "gamma in exp(-gamma |F - F'|^2), F the features; 0: 4 / their mean squared distance in the batch",
        ">= 0",
    )
    length_gradient: str = word(
        "differentiated | held",
        "with gamma=0: whether gradients include its dependence on the features, or hold it fixed",
    )

    mixed_precision: bool = flag(False, "compute the network in bfloat16; its weights and all else stay in float32")
    dropout: float = number(
        0.0, ">= 0 and < 1", "share of the features set to zero in a training step, anew for each point of the batch"
    )

    @abc.abstractmethod
    def module(self, image: Image) -> torch.nn.Module:
        """Return the network, which maps points (n, …) to features (n, features). image: size of the data's images."""

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        import torch

        from kfx.numerics.streams import seeded

        made = partial(self.module, image)
        with seeded(0):
            kernel = self.constructor()(
                made(),
                self.gamma,
                self.length_gradient,
                mixed_precision=self.mixed_precision,
                dropout=self.dropout,
                remake=made,
                **common,
            )
            if image is not None:
                height, width, channels = (*image, 1)[:3]
                kernel.require_good_on(torch.rand(3, channels, height, width))
        return kernel

    def own_threads(self) -> bool:
        return True

    def draws_blocks(self) -> bool:
        return self.initial == "random"


@dataclass
class FormulaOption(KernelOption, abc.ABC):
    """A kernel given by its formula in torch, `formula(x, y, **parameters)`; autograd computes the pullback.

    A subclass has a field for each parameter, made by `parameter`, `variance` or `signed_parameter`.
    """

    @staticmethod
    @abc.abstractmethod
    def formula(x: torch.Tensor, y: torch.Tensor, **parameters: torch.Tensor) -> torch.Tensor:
        """Return K(x, y), (n, m), in x's dtype and on x's device. x: (n, …). y: (m, …). parameters: scalars by name."""

    @classmethod
    def check_definition(cls) -> None:
        super().check_definition()
        names, formula = list(cls.default_bounds()), inspect.signature(cls.formula)
        try:
            formula.bind(None, None, **dict.fromkeys(names))
        except TypeError as error:
            raise ConfigError(
                f"kernel={cls.name}: its formula{formula} does not fit its fields ({error}); expected "
                f"formula({', '.join(['x', 'y', *names])})"
            ) from error

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        from kfx.kernels.formula import Formula

        values = {name: getattr(self, name) for name in self.default_bounds()}
        bounds = {**self.default_bounds(), **(common["bounds"] or {})}
        fields = self.fields().items()
        own = {kind: [k for k, item in fields if item.metadata.get(kind)] for kind in ("may_be_zero", "signed")}
        return Formula(type(self).formula, values, bounds=bounds, name=self.name, trainable=common["trainable"], **own)
