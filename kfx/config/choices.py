"""Names of choices that an option and the code that it selects both need."""

SCALES = ("absolute", "mean_diagonal", "centered")
"""Scales of λ: `kfx.numerics.regularization`."""
SOLVERS = ("cholesky", "lstsq", "inverse")
"""Solvers of kernel ridge regression: `kfx.numerics.regression`."""
CENTRES = ("uniform", "rpcholesky", "flow", "kmeans")
"""Ways to choose the centres of Nyström regression: `kfx.evaluation.centres`."""
STEPS = ("center", "unit_norm", "mean_norm", "normalize", "normalize_channels", "zca")
"""Steps of preprocessing: `kfx.data.dataset`."""
EVALUATION_SOLVERS = ("cholesky", "conjugate_gradients", "nystrom", "lstsq", "inverse")
"""Solvers of an evaluation, beside Cholesky: `kfx.evaluation.systems`."""
POINTS = ("uniform", "stratified", "neighbourhood")
"""Which points make a batch: `kfx.sampling.samplers`."""
VIEWS = ("crop", "flip")
"""Random views of an image in a batch: `kfx.sampling.samplers`."""
POOLED_ARCHITECTURES = ("convnet_gap", "cntk_gap", "myrtle5", "myrtle7", "myrtle10")
ARCHITECTURES = ("simple", "convnet", "convnet_cifar", "resnet", "resnet32", *POOLED_ARCHITECTURES)
"""Architectures of CNNGP kernels: `kfx.kernels.cnngp.architectures`."""
FIXED_LAYERS = ("none", "first", "last", "first_and_last")
"""Layers of a convolutional network whose weights are not trained, in its tangent kernel."""
NETWORKS = ("small", "mnist", "mnist_300", "fashion", "fashion_1024")
"""Networks that compute features: `kfx.kernels.networks`."""
DEEP_KERNELS = ("resnet20", "small")
"""Architectures of deep kernel machines: `kfx.kernels.conv_dkm.architectures`."""
LIKELIHOODS = ("categorical", "gaussian")
"""Likelihoods of deep kernel machines: `kfx.kernels.conv_dkm.likelihoods`."""
ENGINES = ("auto", "fused", "torch", "triton")
"""Engines of a CNNGP: `kfx.kernels.engine`."""
ACTIVATIONS = ("relu", "erf")
"""Activations of a dense network of infinite width."""
BACKENDS = ("auto", "fused", "torch", "native", "neural_tangents")
"""Backends of dense networks of infinite width: `kfx.kernels.nngp.kernel`."""
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
LENGTHS = ("natural", "mean_squared_distance", "median_distance")
"""Ways to take a length from the training points: `kfx.kernels.starts`."""
CHOSEN = ("validation", "leave_one_out", "backtest")
"""Ways to choose λ among candidates: `kfx.evaluation.cross_validation`, and `kfx.data.backtest` for series."""
BACKTESTED = (1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Values of λ for data without noise, among which a backtest chooses too: `kfx.data.backtest`."""
SYSTEMS = ("lorenz", "roessler", "chua", "double_pendulum", "logistic", "henon", "bernoulli", "mackey_glass")
"""Dynamical systems by formula: `kfx.data.dynamics`."""
SIMULATORS = {
    "borehole": 8,
    "wing_weight": 10,
    "piston": 7,
    "otl_circuit": 6,
    "ishigami": 3,
    "friedman": 20,
    "prosail": 13,
}
"""Simulators and their numbers of inputs: `kfx.data.simulators`."""
TARGETS = ("as_given", "centered", "standardized")
"""What kernels are trained on: `kfx.data.dataset`."""
RANDOM = ("random", "partly_random")
"""Ways to draw initial parameters: `kfx.kernels.starts`."""
METHODS = ("RK23", "RK45", "DOP853")
"""Explicit Runge-Kutta methods of SciPy: `kfx.flows.runge_kutta`."""
FORMATS = ("png", "pdf", "svg")
"""Formats of pictures: `kfx.plots`."""
