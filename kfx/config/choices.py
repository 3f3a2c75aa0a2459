"""Names that settings take, where an option and the code that it chooses both need them."""

SCALES = ("absolute", "mean_diagonal", "centered")
"""Of λ: `kfx.numerics.regularization`."""
SOLVERS = ("cholesky", "lstsq", "inverse")
"""Of kernel ridge regression: `kfx.numerics.regression`."""
STEPS = ("center", "unit_norm", "normalize", "normalize_channels", "zca")
"""Of preprocessing: `kfx.data.dataset`."""
EVALUATION_SOLVERS = ("cholesky", "conjugate_gradients", "lstsq", "inverse")
"""Of kernel ridge regression where its numbers are judged: `kfx.evaluation.systems`."""
POINTS = ("uniform", "stratified", "neighbourhood")
"""Which points make a batch: `kfx.sampling.samplers`."""
VIEWS = ("crop", "flip")
"""Of an image in a batch: `kfx.sampling.samplers`."""
ARCHITECTURES = ("simple", "convnet", "convnet_cifar", "resnet", "resnet32")
"""Of convolutional networks: `kfx.kernels.cnngp.architectures`."""
NETWORKS = ("small", "mnist", "fashion")
"""Of networks as feature maps: `kfx.kernels.networks`."""
DEEP_KERNELS = ("resnet20", "small")
"""Of deep kernel machines: `kfx.kernels.conv_dkm.architectures`."""
LIKELIHOODS = ("categorical", "gaussian")
"""Of their outputs: `kfx.kernels.conv_dkm.likelihoods`."""
ENGINES = ("auto", "fused", "torch", "triton")
"""Of a CNNGP: `kfx.kernels.engine`."""
ACTIVATIONS = ("relu", "erf")
"""Of a dense network of infinite width."""
BACKENDS = ("auto", "fused", "torch", "native", "neural_tangents")
"""What computes one: `kfx.kernels.nngp.kernel`."""
LENGTHS = ("natural", "mean_squared_distance")
"""Ways to take a length from the training points: `kfx.kernels.starts`."""
METHODS = ("RK23", "RK45", "DOP853")
"""Explicit Runge-Kutta methods of SciPy's: `kfx.flows.runge_kutta`."""
FORMATS = ("png", "pdf", "svg")
"""Of pictures: `kfx.plots`."""
