"""The option `kernel=conv_dkm`: the layers of a deep kernel machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from kfx.config.fields import FieldError, flag, number, ranged, word
from kfx.config.option import option
from kfx.config.parts import ConfigView
from kfx.kernels.kernel_option import Image, KernelOption
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.kernels.base import Kernel
    from kfx.kernels.parameters import Training

_BY_BATCH = ("none", "batch", "local")


@option(
    "kernel", "conv_dkm", "Convolutional deep kernel machine: Gram matrices learned layer by layer (Milsom et al. 2023)"
)
class ConvDKMOption(KernelOption):
    builds = "kfx.kernels.conv_dkm.kernel:ConvDKM"
    images_only = True
    is_deep = True
    quick = ("objective=elbo", "kernel.architecture=small", "kernel.inducing=[4,6,8]")

    initial: str = word(
        "random", "weights drawn by seed, patches from training images, each Gram matrix G equal to its kernel K"
    )
    architecture: str = word("resnet20 | small", "number of residual blocks per stage: resnet20 three, small one")
    inducing: list[int] = ranged(
        [128, 256, 512],
        "a list of whole numbers >= 2, one a stage",
        lambda v: len(v) > 0 and all(2 <= n <= 100_000 for n in v),
        "number of inducing points in each stage",
    )
    strides: list[int] = ranged(
        [1, 2, 2],
        "a list of whole numbers >= 1, as many as inducing has",
        lambda v: len(v) > 0 and all(1 <= n <= 100 for n in v),
        "stride of the first convolution of each stage; the public scripts have [2,2,2]",
    )
    patches: str = word("learned | fixed", "inducing patches: trained, or fixed as they were drawn")
    regularization_strength: float = ranged(
        0.001,
        "a number >= 0, or inf",
        lambda v: v >= 0,
        "strength nu of each Gram layer's regularizer; inf: G = K, an NNGP with inducing points",
    )
    inducing_normalization: str = word(
        _BY_BATCH,
        "normalization of inducing points; batch: by the mean of G_ii's diagonal; local: each by its own variance",
        default="local",
    )
    point_normalization: str = word(
        "none | batch | image | location | local",
        "normalization of data points by the mean variance of the batch, of an image, of a position; "
        "local: each by its own",
        default="local",
    )
    inducing_scale: str = word(
        _BY_BATCH,
        "learned scale of inducing points after normalization; batch: one for all; local: one for each",
        default="batch",
    )
    point_scale: str = word(
        "none | batch | location",
        "learned scale of data points after normalization; batch: one for all; location: one for each position",
        default="batch",
    )
    top: str = word(
        "average | linear",
        "top layer; average: average pooling over positions; linear: a convolution over the whole map",
    )
    likelihood: str = word(
        "categorical | gaussian", "likelihood of the outputs; gaussian: regression on one-hot targets"
    )
    noise_variance: float = number(1.0, "> 0", "noise variance with likelihood=gaussian")
    jitter: float = number(
        1e-4, ">= 0", "relative and absolute amount added to Gram matrices' diagonals before each nonlinearity"
    )
    recompute: bool | None = flag(
        None, "compute a block's matrices again for the gradient, to save memory", null="true where they are large"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.strides) != len(self.inducing):
            raise FieldError("strides", self.strides, f"{len(self.inducing)} numbers, as inducing={self.inducing} has")

    def make(self, image: Image, **common: Unpack[Training]) -> Kernel:
        from kfx.kernels.conv_dkm.architectures import BLOCKS, Architecture
        from kfx.kernels.conv_dkm.normalization import Normalizing
        from kfx.numerics.streams import seeded

        assert image is not None
        height, width, channels = (*image, 1)[:3]
        scales = self.inducing_scale, self.point_scale
        architecture = Architecture(
            (channels, height, width),
            self.inducing,
            self.strides,
            BLOCKS[self.architecture],
            self.regularization_strength,
            self.jitter,
            self.top,
            Normalizing(self.inducing_normalization, self.point_normalization, *scales),
            self.patches == "learned",
            self.recompute,
        )
        with seeded(0):
            return self.constructor()(architecture, self.likelihood, self.noise_variance, **common)

    def own_threads(self) -> bool:
        return True

    def check(self, config: ConfigView) -> None:
        super().check(config)
        if not config.objective.is_of_deep_kernels:
            raise ConfigError(f"kernel={self.name}: takes no objective but its own; set objective=elbo")
        if config.dataset.image is None or min(config.dataset.image[:2]) < 3:
            raise ConfigError(f"kernel={self.name}: takes images, of 3 x 3 pixels at least; use dataset=digits, mnist")
        height, width = config.dataset.image[:2]
        images = config.training_size()
        if self.inducing[0] > (there := images * (height - 2) * (width - 2)):
            raise ConfigError(
                f"kernel.inducing={self.inducing}: {self.inducing[0]} inducing patches, and the {images} training "
                f"images have {there}; take fewer, or raise dataset.n_train"
            )
