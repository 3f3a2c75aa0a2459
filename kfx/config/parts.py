"""What the parts of a config tell each other: facts, settings and methods that options of other families ask for.

The base class of a family inherits its part, and overrides the facts where an option differs.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from kfx.config.fields import Several

Built = Any
"""What an option of a family builds. Any: this module must not import the families."""


class Part(Protocol):
    name: ClassVar[str] = ""
    origin: ClassVar[str] = "kfx"
    """Where it comes from: `kfx`, a distribution and its version, a plugin's file name, or a Python module."""

    def standing_for(self, config: ConfigView) -> Part:
        """The option that this one stands for in a config; itself by default."""
        return self


class DatasetPart(Part, Protocol):
    has_classes: ClassVar[bool] = False
    """Whether its targets are classes."""
    image: ClassVar[tuple[int, ...] | None] = None
    """Height, width and, if it is not 1, the number of channels of its images; None for a table of numbers."""
    is_table: ClassVar[bool] = False
    """Whether it is one table from which test points are taken, so that cross-validation can use all of it."""
    is_own: ClassVar[bool] = False
    """Whether it is a person's own data, for which `Option.settled` chooses what is not given."""
    is_simulated: ClassVar[bool] = False
    """Whether its targets are computed and hold no noise."""
    is_series: ClassVar[bool] = False
    """Whether its points are windows of series, from which forecasts are made."""
    weights: ClassVar[Several] = None
    """Where the points' weights come from; None for none."""
    preprocess: list[str]

    def size(self) -> int: ...
    def test_size(self) -> int | None: ...

    def usual_length(self) -> float | None:
        """The kernel's length that was chosen together with fields of the data set, or None."""
        return None

    def feature_count(self) -> int | None:
        """The number of features of own data; None if it is not known before the data are read."""
        return None


class KernelPart(Part, Protocol):
    images_only: ClassVar[bool] = False
    """Whether the kernel takes images only."""
    input_gradients: ClassVar[bool] = True
    """Whether the pullback gives gradients with respect to the points, which flows need."""
    has_network: ClassVar[bool] = False
    """Whether the kernel compares the features of a network."""
    has_weights: ClassVar[bool] = False
    """Whether the kernel is a weighted sum, whose weights a penalty can make zero."""
    is_deep: ClassVar[bool] = False
    """Whether the kernel is a deep kernel machine, which has its own objective."""
    initial: str
    starts: int
    start_from: str
    trainable: list[str] | None

    def takes_length_from_points(self, config: ConfigView) -> bool:
        """Return whether the config leaves the kernel's length to the points."""
        return False

    def length_is_free(self) -> bool:
        """Return whether the kernel has one length, which may be taken from the data."""
        return False

    def set_by_points(self, kernel: Any) -> set[str | None]:
        """Return the parameters of the kernel as built whose initial values wait for the training points."""
        return set()


class ObjectivePart(Part, Protocol):
    trains_regularization: ClassVar[bool] = False
    """Whether λ may be trained on this objective; most objectives reward a larger λ as such."""
    has_head: ClassVar[bool] = False
    """Whether the objective trains a head, for example on a network's features, that predicts as well as the kernel."""
    rho_has_law: ClassVar[bool] = True
    """Whether ρ of a batch is computed from a Cholesky factor, so that it has the law of `kfx.numerics.rho_law`."""
    is_of_deep_kernels: ClassVar[bool] = False
    """Whether the objective is for deep kernel machines, which take no other objective."""
    takes_weights: ClassVar[bool] = False
    """Whether its value for SΘS, SY and λ is that of points with the weights S² (`kfx.numerics.weighting`)."""

    def build(self) -> Built: ...

    def own_loss(self, config: ConfigView) -> Built:
        """Return the class of loss, called with a kernel, x and y, of an objective that is not a function of a Gram
        matrix; None by default."""
        return None


class SamplerPart(Part, Protocol):
    follows_rho: ClassVar[bool] = False
    """Whether the sizes of its samples depend on ρ."""
    batch_size: Several
    choice: str
    samples: int

    def build(self, iterations: int) -> Built: ...
    def held_out(self) -> Built: ...


class OptimizerPart(Part, Protocol):
    fits_regularization: ClassVar[bool] = False
    """Whether the optimizer fits λ itself, as a variance of noise."""
    follows_gradients: ClassVar[bool] = False
    """Whether the optimizer follows exact gradients, which cost no more for many parameters than for one."""
    moves_points: ClassVar[bool] = False
    """Whether the optimizer is a flow: it moves points, and possibly parameters."""
    views_batches: ClassVar[bool] = True
    """Whether the images of batches may be augmented."""
    builds_objective: ClassVar[bool] = False
    """Whether the optimizer computes differences of the objective as a function of a Gram matrix."""
    keeps_batch: ClassVar[bool] = False
    """Whether the optimizer stays with its first batch."""
    can_train_heads: ClassVar[bool] = False
    """Whether the optimizer takes objectives that train a head, which are not functions of a Gram matrix."""
    fall_back: bool | None
    minimizes_objective: ClassVar[bool] = True
    """Whether the optimizer minimises the configured objective, and not one of its own."""
    iterations: int

    def refuses_trained_regularization(self) -> str | None:
        """Return why λ cannot be trained by this optimizer, as an error message; None where it can."""
        return None


class EvaluationPart(Part, Protocol):
    n_interpolation: list[int] | None
    rho: bool
    posterior_variance: bool
    train_error: bool | None
    solver: str
    regularization: Several

    def forecast_steps(self) -> int | None:
        """The number of steps of a forecast that is asked for; None where nothing is."""
        return None

    def judges_distributions(self, config: ConfigView) -> bool: ...
    def scoring(self, config: ConfigView) -> Built: ...


class DevicePart(Part, Protocol):
    dtype: str


class RegularizationPart(Protocol):
    value: float | None
    scale: str
    selection: str

    def leaves_choice_to_evaluation(self, config: ConfigView) -> bool: ...
    def build(self) -> Built: ...
    def selected(self, how: str | None = None, scale: str | None = None) -> Built: ...
    def is_free_of_noise(self, config: ConfigView) -> bool: ...
    def left_out(self, config: ConfigView) -> Built: ...


class OutputsPart(Protocol):
    reduce: str
    kernels: str

    @property
    def of_components(self) -> bool: ...
    @property
    def is_separate(self) -> bool: ...


class FlowPart(Protocol):
    record_layers: bool
    snapshots: int
    snapshot_points: int


class FollowPart(Protocol):
    every: int
    last: int
    n_interpolation: list[int] | None
    repeats: int
    draw: str


class ConfigView(Protocol):
    """The config as an option sees it: `kfx.experiment.config.Config`, whose fields lead to each family's options."""

    dataset: DatasetPart
    kernel: KernelPart
    objective: ObjectivePart
    sampler: SamplerPart
    optimizer: OptimizerPart
    evaluation: EvaluationPart
    device: DevicePart
    regularization: RegularizationPart
    outputs: OutputsPart
    flow: FlowPart
    follow: FollowPart
    interpolation: object
    kernel_check: bool
    seed: int

    def training_size(self) -> int:
        """The number of points that a kernel is trained on, as far as it is known before the data are read."""
        ...
