"""Names of choices that an option and the code that it selects both need."""

SCALES = ("absolute", "mean_diagonal", "centered")
"""Scales of λ: `kfx.numerics.regularization`."""
SOLVERS = ("cholesky", "lstsq", "inverse")
"""Solvers of kernel ridge regression: `kfx.numerics.regression`."""
CENTRES = ("uniform", "rpcholesky", "flow", "kmeans")
"""Ways to choose the centres of Nyström regression: `kfx.evaluation.centres`."""
STEPS = (
    *("center", "unit_norm", "mean_norm", "normalize", "normalize_channels", "zca"),
    *("quantile", "yeo_johnson", "snv", "msc", "derivative", "second_derivative"),
)
"""Steps of preprocessing: `kfx.data.steps`."""
EVALUATION_SOLVERS = ("cholesky", "conjugate_gradients", "nystrom", "lstsq", "inverse")
"""Solvers of an evaluation, beside Cholesky: `kfx.evaluation.systems`."""
POINTS = ("uniform", "stratified", "neighbourhood")
"""Which points make a batch: `kfx.sampling.samplers`."""
VIEWS = ("crop", "flip")
"""Random views of an image in a batch: `kfx.sampling.samplers`."""
CHOSEN = ("validation", "leave_one_out", "backtest")
"""Ways to choose λ among candidates: `kfx.evaluation.cross_validation`, and `kfx.data.backtest` for series."""
BACKTESTED = (1e-11, 1e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)
"""Values of λ for data without noise, among which a backtest chooses too: `kfx.data.backtest`."""
PERIODS = {"year": 365.2425, "week": 7.0, "day": 1.0}
"""In days: `kfx.data.members`, `kfx.data.seasons`."""
SYSTEMS = (
    *("lorenz", "roessler", "chua", "double_pendulum", "logistic", "henon", "ikeda", "bernoulli", "mackey_glass"),
)
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
WARPS = ("log", "yeo_johnson")
"""Transforms of targets: `kfx.data.warps`."""
TARGETS = ("as_given", "centered", "standardized", *WARPS)
"""What kernels are trained on: `kfx.data.dataset`."""
METHODS = ("RK23", "RK45", "DOP853")
"""Explicit Runge-Kutta methods of SciPy: `kfx.flows.runge_kutta`."""
FORMATS = ("png", "pdf", "svg")
"""Formats of pictures: `kfx.plots`."""
