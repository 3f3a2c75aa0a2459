"""Options of the group `kernel`: parameters with defaults and bounds, accepted data, and how each is built."""

from __future__ import annotations

from kfx.config.fields import number, parameter, ranged, word
from kfx.config.option import Option, option
from kfx.config.parts import ConfigView
from kfx.config.registry import OPTIONS
from kfx.kernels.kernel_option import DistanceOption, KernelOption, a_length
from kfx.outcomes import ConfigError

# ---- kernels of the distance


@option(
    "kernel",
    "auto",
    "rbf; for an own table without a flow matern with nu=2.5, and smooth_and_rough for a regression with a length for "
    "each feature (docs/tables.md)",
)
class AutoKernelOption(DistanceOption):
    builds = "kfx.kernels.stationary:RBF"

    sigma: float | None = a_length()

    def standing_for(self, config: ConfigView) -> Option:
        fields = {name: getattr(self, name) for name in self.fields()}
        own = config.dataset
        is_table = own.is_own and own.image is None and not own.is_series and not own.is_simulated
        if not is_table or config.optimizer.moves_points:
            return RBFOption(**fields)
        matern = MaternOption(**fields, nu=2.5)
        of_length = {"sigma", "ard", "initial", "trainable", "bounds"}
        is_plain = not own.has_classes and all(fields[name] == self.defaults()[name] for name in of_length)
        if not (is_plain and matern.settled(config)["ard"]):
            return matern
        chosen = OPTIONS["kernel"]["smooth_and_rough"]
        rest = {name: value for name, value in fields.items() if name not in of_length}
        return chosen(**rest, bounds=chosen.defaults()["bounds"])


@option("kernel", "rbf", "Gaussian kernel exp(-r^2 / (2 sigma^2))")
class RBFOption(DistanceOption):
    builds = "kfx.kernels.stationary:RBF"

    sigma: float | None = a_length()


@option("kernel", "rational_quadratic", "Rational quadratic kernel (beta^2 + gamma r^2)^(-alpha)")
class RationalQuadraticOption(DistanceOption):
    builds = "kfx.kernels.stationary:RationalQuadratic"
    length = "beta"

    alpha: float = parameter(1.0, 1e-3, 1e2, "exponent")
    beta: float | None = a_length()
    gamma: float = parameter(1.0, 1e-8, 1e8, "weight of r^2; fixed unless named in trainable")


@option("kernel", "matern", "Matern kernel with smoothness nu and length scale sigma, as in scikit-learn")
class MaternOption(DistanceOption):
    builds = "kfx.kernels.stationary:Matern"

    sigma: float | None = a_length()
    nu: float = ranged(1.5, "0.5, 1.5 or 2.5", lambda v: v in (0.5, 1.5, 2.5), "smoothness")


@option("kernel", "laplace", "Laplace kernel exp(-|x - x'|_1 / sigma), with the sum of absolute differences")
class LaplaceOption(DistanceOption):
    builds = "kfx.kernels.stationary:Laplace"

    sigma: float | None = a_length()


# ---- kernels of the inner product


@option("kernel", "linear", "Linear kernel x.x' + bias_variance")
class LinearOption(KernelOption):
    builds = "kfx.kernels.dot_product:Linear"

    bias_variance: float = parameter(1.0, 1e-4, 1e4, "constant added to x.x'", ">= 0")


@option("kernel", "polynomial", "Polynomial kernel (gamma x.x' + bias_variance)^degree")
class PolynomialOption(KernelOption):
    builds = "kfx.kernels.dot_product:Polynomial"

    degree: int = number(3, "whole >= 1 and <= 1000", "exponent")
    gamma: float = parameter(1.0, 1e-6, 1e4, "weight of x.x'")
    bias_variance: float = parameter(1.0, 1e-4, 1e4, "constant added to gamma x.x'", ">= 0")


# ---- kernels of a differential equation


@option(
    "kernel",
    "greens_function",
    "Green's function of -(b u')' on (0, 1), whose conductivity b is learned (Owhadi & Yoo 2019, section 5)",
)
class GreensFunctionOption(KernelOption):
    builds = "kfx.kernels.greens_function:GreensFunction"
    input_gradients = False
    quick = ("dataset=elliptic_1d", "dataset.n_train=100", "dataset.n_test=null", "dataset.preprocess=[]")

    modes: int = number(
        64,
        "whole >= 1 and <= 10000",
        "number of modes i in log(b / b_0) = sum of cosine_i cos 2 pi i x + sine_i sin 2 pi i x",
    )
    intervals: int = number(
        256, "whole >= 2 and <= 4096", "number of finite elements on (0, 1); points are the nodes i / intervals"
    )
    conductivity: str = word("one | rough", "initial conductivity b_0: 1, or the rough one of dataset=elliptic_1d")

    @classmethod
    def default_bounds(cls) -> dict[str, tuple[float, float]]:
        return {"cosine": (-10.0, 10.0), "sine": (-10.0, 10.0)}

    def check(self, config: ConfigView) -> None:
        intervals = getattr(config.dataset, "intervals", None)
        if intervals is None:
            raise ConfigError(f"kernel={self.name}: takes nodes of an interval; use dataset=elliptic_1d")
        if intervals != self.intervals:
            raise ConfigError(f"kernel.intervals={self.intervals}: expected dataset.intervals, {intervals}")
        if config.dataset.preprocess:
            raise ConfigError(f"dataset.preprocess={config.dataset.preprocess}: moves the nodes; set []")
        super().check(config)
