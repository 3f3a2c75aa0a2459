"""Options of kernels that combine others: sums, products, dictionaries, and the kernel of emulators."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from kfx.config.fields import Several, flag, nested, number, parameter, ranged, word, words
from kfx.config.nodes import make_option
from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.config.registry import OPTIONS
from kfx.config.rules import NO_IMAGES, needs, rows
from kfx.kernels.kernel_option import LENGTHS, RANDOM, Image, KernelOption, is_number
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.kernels.base import Kernel
    from kfx.kernels.parameters import Training


def _parts_of(allowed: tuple[str, ...] | None, coefficient: float | None) -> Callable[[str, object], object]:
    """Return a converter for a field of parts, to pairs of a coefficient, or None, and a kernel option.

    allowed: names of the allowed kernels; None for all. coefficient: the default coefficient of a part.
    """

    def convert(path: str, parts: object) -> object:
        if not isinstance(parts, list) or not parts:
            raise ConfigError(f"{path}={parts}: expected a list of kernels: name and parameters")
        known = allowed or tuple(OPTIONS["kernel"])
        made = []
        for i, part in enumerate(parts):
            here = f"{path}[{i}]"
            if not isinstance(part, Mapping) or part.get("name") not in known:
                raise ConfigError(f"{here}={part}: expected a name, one of {', '.join(known)}, and its parameters")
            own = part.get("coefficient", coefficient)
            if own is not None and not (is_number(own) and own > 0):
                raise ConfigError(f"{here}.coefficient={own}: expected a number > 0")
            made.append((own, make_option(here, "kernel", {k: v for k, v in part.items() if k != "coefficient"})))
        return made

    return convert


_OF_STARTS = ("initial", "initial_range", "initial_distribution", "starts", "start_from")
"""Settings of the kernel that is trained, which its parts do not have."""


@dataclass
class CombinationOption(KernelOption):
    """A kernel that combines others; a part with a `coefficient` c enters as c² K."""

    parts: Several = None

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        from kfx.kernels.base import Scaled

        built = [(coefficient, part.build(image)) for coefficient, part in self.parts]
        parts = [part if coefficient is None else Scaled(part, coefficient) for coefficient, part in built]
        return self.constructor()(parts, **common)

    def own_threads(self) -> bool:
        return any(part.own_threads() for _, part in self.parts)

    def draws_blocks(self) -> bool:
        return any(part.draws_blocks() for _, part in self.parts)

    def check(self, config: ConfigView) -> None:
        self._check_starts("kernel")
        for _, part in self.parts:
            part.check_together(config)
        super().check(config)

    def _check_starts(self, path: str) -> None:
        for i, (_, part) in enumerate(self.parts):
            at, usual = f"{path}.parts[{i}]", type(part)()
            for name in (name for name in _OF_STARTS if getattr(part, name) != getattr(usual, name)):
                why = f"{getattr(part, name)}: expected {getattr(usual, name)}, since a part starts as it is given"
                raise ConfigError(f"{at}.{name}={why}; set kernel.{name} for all parameters, or the part's numbers")
            if isinstance(part, CombinationOption):
                part._check_starts(at)

    @property
    def images_only(self) -> bool:  # type: ignore[override]
        return any(part.images_only for _, part in self.parts)

    @property
    def input_gradients(self) -> bool:  # type: ignore[override]
        return all(part.input_gradients for _, part in self.parts)

    @property
    def uses_jax(self) -> bool:  # type: ignore[override]
        return any(part.uses_jax for _, part in self.parts)


_PARTS = "a list of kernels: name, parameters and, for c^2 K, a coefficient c"
_NETWORK_PARTS = ("rbf", "rational_quadratic")


@option("kernel", "sum", "The sum of kernels; a part with a coefficient c counts c^2 times")
class SumOption(CombinationOption):
    builds = "kfx.kernels.base:Sum"

    parts: Several = nested(
        [{"name": "rbf", "sigma": 1.0}, {"name": "linear", "bias_variance": 1.0}],
        _PARTS,
        _parts_of(None, None),
        "kernels that are added",
    )


@option("kernel", "product", "The product of kernels")
class ProductOption(CombinationOption):
    builds = "kfx.kernels.base:Product"

    parts: Several = nested(
        [{"name": "rbf", "sigma": 1.0}, {"name": "polynomial", "degree": 2}],
        _PARTS,
        _parts_of(None, None),
        "kernels that are multiplied",
    )


@option(
    "kernel", "rbf_network", "Sum of RBF and rational quadratic kernels with squared coefficients (Darcy 2020, ch. 4)"
)
class RBFNetworkOption(SumOption):
    parts: Several = nested(
        [
            {"name": "rbf", "sigma": 1.0, "coefficient": 1.0},
            {"name": "rbf", "sigma": 10.0, "coefficient": 1.0},
            {"name": "rational_quadratic", "alpha": 1.0, "beta": 1.0, "coefficient": 1.0},
        ],
        f"a list of {' and '.join(_NETWORK_PARTS)} kernels: name, parameters, coefficient",
        _parts_of(_NETWORK_PARTS, 1.0),
        "kernels that are added, each with a coefficient",
    )


DICTIONARY = (
    *("gaussian", "exponential", "inverse_multiquadric", "inverse_multiquadric_of_r", "inverse_power"),
    *("inverse_power_of_r", "cauchy", "cauchy_of_r", "rational", "linear", "polynomial"),
)
"""Kernels of a dictionary that are positive definite: `kfx.kernels.dictionary`."""
INDEFINITE = (
    *("multiquadric", "periodic", "periodic_of_r", "decaying_periodic", "decaying_periodic_of_r", "parabola"),
    *("triangle", "circular", "logarithm", "sigmoid"),
)
"""Kernels of a dictionary that are not positive definite in every dimension."""


@option(
    "kernel",
    "dictionary",
    "Weighted sum of up to 21 kernels, whose weights sum to one (Yang et al. 2023, sparse flows)",
)
class DictionaryOption(KernelOption):
    builds = "kfx.kernels.dictionary:Dictionary"
    has_weights = True

    members: list[str] = words(
        list(DICTIONARY), (*DICTIONARY, *INDEFINITE), "kernels that are added; from multiquadric on indefinite ones"
    )
    allow_indefinite: bool = flag(
        False, "accept kernels that are not positive definite in every dimension; Cholesky factors may then fail"
    )
    weights: list[float] | None = ranged(
        None,
        "a list of numbers >= 0",
        lambda v: all(is_number(x) and x >= 0 for x in v),
        "initial weights of the members, in their order",
        null="equal ones",
    )
    parameters: dict = ranged(
        {},
        "parameter: number, as gaussian_length: 2.0",
        lambda v: all(is_number(x) for x in v.values()),
        "initial parameters of the members; 1, and 2 for exponents, where not given",
    )


@dataclass
class OfLengthsOption(KernelOption):
    """Base of sums of kernels that always have a length for each feature of a table."""

    rules = rows(needs(NO_IMAGES, "use cnngp"))
    quick = ("dataset=diabetes", "dataset.n_train=100", "dataset.n_test=40", "dataset.preprocess=[]")

    initial: str = word(
        ("explicit", *RANDOM, *LENGTHS),
        "initial lengths; median_distance: that of two training points; explicit: 1; random: drawn by seed",
        default="median_distance",
    )

    @classmethod
    def default_bounds(cls) -> dict[str, tuple[float, float]]:
        return {"lengths": (1e-4, 1e4), **super().default_bounds()}


@option(
    "kernel",
    "smooth_and_rough",
    "Matern 5/2 + c^2 Laplace, both with a length for each feature of a table",
)
class SmoothAndRoughOption(OfLengthsOption):
    builds = "kfx.kernels.smooth_and_rough:SmoothAndRough"

    roughness: float = parameter(1.0, 1e-4, 1e4, "coefficient c of the Laplace kernel")

    @classmethod
    def default_bounds(cls) -> dict[str, tuple[float, float]]:
        return {**super().default_bounds(), "stretch": (1e-4, 1e4)}

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        from kfx.kernels.ard import ARD

        bounds = {name: pair for name, pair in (common["bounds"] or {}).items() if name == "stretch"}
        return ARD(self.constructor()(self.roughness, bounds=bounds), 1.0, **common)

    def set_by_points(self, kernel: Kernel) -> set[str | None]:
        return {*super().set_by_points(kernel), "stretch"}

    def takes_length_from_points(self, config: ConfigView) -> bool:
        return config.dataset.is_own and self.initial == "median_distance"


@option(
    "kernel",
    "emulator",
    "c0^2 Matern 3/2 + c1^2 x.x' with a length for each feature, for emulators (Lamminpaa et al. 2025, KernelFlows.jl)",
)
class EmulatorOption(OfLengthsOption):
    linear: float = number(0.1, "> 0", "initial coefficient c1 of the linear kernel")

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        from kfx.kernels.ard import ARD
        from kfx.kernels.base import Scaled, Sum
        from kfx.kernels.dot_product import Linear
        from kfx.kernels.stationary import Matern

        linear = Scaled(Linear(0.0, trainable=[]), self.linear)
        return ARD(Sum([Scaled(Matern(1.0, 1.5)), linear]), 1.0, **common)
