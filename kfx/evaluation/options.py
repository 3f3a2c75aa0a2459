"""Options of the evaluation: on test points or in folds, and how predictions are made and judged."""

from __future__ import annotations

import abc
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kfx.config.choices import CENTRES, CHOSEN, EVALUATION_SOLVERS, SCALES
from kfx.config.fields import MOST_REPEATS, Several, cutoff, flag, nested, number, ranged, sizes, word
from kfx.config.option import Option, Settings, option
from kfx.config.parts import ConfigView, EvaluationPart
from kfx.config.registry import OPTIONS
from kfx.config.rules import CLASSES, SERIES, Rule, needs, refuses, rows
from kfx.objectives.options import left_out_by
from kfx.outcomes import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from kfx.data.dataset import Dataset
    from kfx.evaluation.nystrom import Approximation
    from kfx.evaluation.scoring import Scoring
    from kfx.numerics.streams import Streams
    from kfx.objectives.selection import Selection


_MOST_CENTRES, _USUAL_CENTRES, _MOST_EXACT = 10_000, 2000, 30_000
BYTES_OF_CENTRES = 100
"""Bytes that M centres take, divided by M²: a dozen matrices of sums, features and eigenvectors."""
_WITH_VARIANCE = ("cholesky", "nystrom")
_ITEMSIZE = {"float32": 4, "float64": 8}


def _of_solver(key: str, *solvers: str) -> Rule:
    """A setting that these solvers alone have."""
    solver = f"needs evaluation.solver={' or '.join(solvers)}, and it is {{own.solver}}; leave {key} out"
    return refuses(lambda own, _: own.solver not in solvers, solver, key)


def _is_not_negative(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _bytes(path: str, value: object) -> int | None:
    """A number of bytes from a number or a text such as 8GB."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?(?:e\+?\d+)?) ?([kmgt]?)(i?)b?", str(value).lower())
    size = 0.0 if found is None else float(found[1]) * (1024 if found[3] else 1000) ** "_kmgt".index(found[2] or "_")
    if isinstance(value, bool) or not 1e6 <= size <= 1e18:
        raise ConfigError(f"{path}={value}: expected a number of bytes of at least 1MB, as 8GB, 500MB or 8GiB, or null")
    return int(size)


@dataclass
class EvaluationRegularization(Option):
    """λ of the evaluation."""

    value: Several = ranged(
        None,
        "a number >= 0, a list of them, validation, leave_one_out, backtest, or null for the objective's",
        lambda v: (
            v in (None, *CHOSEN) or (v != [] and all(_is_not_negative(x) for x in (v if isinstance(v, list) else [v])))
        ),
        "lambda of the evaluation; a list: each is evaluated; validation, leave_one_out, backtest: chosen for each "
        "kernel as in regularization; null with these as regularization.selection: likewise, but a flow keeps its "
        "initial kernel's lambda",
    )
    scale: str | None = word(SCALES, "unit of value, as regularization.scale", null="regularization.scale")


Split = tuple[int, int, "np.ndarray"]
"""(repeat, fold, order of its training points) of one evaluation."""


@dataclass
class EvaluationOption(Option, EvaluationPart, abc.ABC):
    """Kernel ridge regression with each kernel; a subclass chooses the points."""

    implied = {"calibration": False}  # noqa: RUF012
    rules = rows(
        _of_solver("rcond", "lstsq"),
        _of_solver("centres", "nystrom"),
        _of_solver("choose", "nystrom"),
        _of_solver("rho", "cholesky"),
        _of_solver("posterior_variance", *_WITH_VARIANCE),
        _of_solver("calibration", *_WITH_VARIANCE),
        refuses(
            lambda own, _: own.solver == "nystrom",
            "solver=nystrom, which centres and choose stand for, takes all points; set null",
            "n_interpolation",
        ),
        needs(SERIES, "use leave_one_out or validation", "regularization.value=backtest"),
    )

    n_interpolation: list[int] | None = sizes(
        "all training points", "N_I, the number of interpolation points; a list: each is evaluated"
    )
    random_kernels: int = number(
        0, f"whole >= 0 and <= {MOST_REPEATS}", "number of kernels with random parameters to evaluate for comparison"
    )
    batches: int = number(
        10,
        f"whole >= 0 and <= {MOST_REPEATS}",
        "number of held-out batches on which rho is measured before and after training",
    )
    regularization: EvaluationRegularization = field(default_factory=EvaluationRegularization)
    solver: str = word(
        ("auto", *EVALUATION_SOLVERS),
        "solver of kernel ridge regression; auto: cholesky, and nystrom for own data of more than "
        f"{_MOST_EXACT} points, or that do not fit in memory, or where centres or choose is given; nystrom: through "
        "centres, from one pass over all training points; lstsq and inverse only to repeat published runs",
        settle=lambda own, config: "nystrom" if own._is_for_many(config) else "cholesky",
    )
    centres: int | None = number(
        None,
        f"whole >= 2 and <= {_MOST_CENTRES}",
        "with solver=nystrom: number of centres",
        null="2000, or as many as there are points, or as fit in memory",
    )
    choose: str | None = word(
        CENTRES,
        "with solver=nystrom: how centres are chosen; uniform: at random; rpcholesky: by randomly pivoted Cholesky; "
        "flow: those of rpcholesky, moved by a kernel flow; kmeans: means of clusters",
        null="rpcholesky",
    )
    tolerance: float = number(
        1e-6,
        "> 0 and < 1",
        "with solver=conjugate_gradients: norm of the residual at which to stop, relative to the targets'",
    )
    memory: Several = nested(
        None,
        "a number of bytes, as 8GB, 500MB or 8GiB, or null for half of the machine's",
        _bytes,
        "memory for a Gram matrix and its Cholesky factor; larger ones are kept on disk in tiles",
    )
    store: str | None = ranged(
        None,
        "a folder",
        lambda v: bool(v.strip()),
        "folder for Gram matrices on disk, shared by runs of the same kernel on the same points",
        null="the run's own, which is deleted when the results are recorded",
    )
    rcond: float | None = cutoff()
    clip: list[float] | None = ranged(
        None,
        "[lowest, highest] that a prediction may be",
        lambda v: len(v) == 2 and v[0] < v[1],
        "range to which predictions are clipped, such as [1,10] for grades",
        null="no limits",
    )
    train_error: bool | None = flag(False, "also measure train_mse and train_mae, the errors on training points")
    rho: bool = flag(
        False, "also measure rho: relative error, in the RKHS norm, of the interpolant against that of the largest N_I"
    )
    posterior_variance: bool = flag(False, "also compute the posterior variance of each prediction")
    calibration: bool | None = flag(
        None,
        "also predict standard deviations or probabilities, and measure how well they fit: nlpd, crps and coverage_95, "
        "with outputs.reduce also nlpd_of_vector, that of all outputs of a point together for each output; or "
        "log_loss, brier and calibration_error",
        null="true with own data and solver=nystrom, or cholesky in memory",
    )
    save_predictions: bool = flag(False, "save the predictions of all kernels and N_I in predictions.npz")

    def settled(self, config: ConfigView) -> Settings:
        changes = super().settled(config)
        solver = changes.get("solver", self.solver)
        if self.calibration is None:
            is_exact = solver == "cholesky" and not replace(self, solver=solver).goes_on_disk(config)
            changes["calibration"] = config.dataset.is_own and (is_exact or solver == "nystrom")
        if self.centres is None and solver == "nystrom":
            changes["centres"] = self._usual_centres(config)
        own = self.regularization
        if own.value is None and config.regularization.leaves_choice_to_evaluation(config):
            changes["regularization"] = replace(own, value=left_out_by(config))
        return changes

    def _is_for_many(self, config: ConfigView) -> bool:
        """Whether `auto` is nystrom."""
        if self.centres is not None or self.choose is not None:
            return True
        takes = config.dataset.is_own and not config.dataset.is_series and self.n_interpolation is None
        separate = config.outputs.kernels == "separate" or config.outputs.reduce != "none"
        needs_exact = separate or self.rho or getattr(self, "draws", 0) > 0
        if not takes or needs_exact:
            return False
        try:
            n = config.training_size()
            fits = config.dataset.weights is not None or self.bytes_of(config, n) <= self.memory_bytes()
        except DataError:  # reported by the check
            return False
        return n > _MOST_EXACT or not fits

    def judges_distributions(self, config: ConfigView) -> bool:
        """Whether all that is measured takes a prediction with its deviation."""
        is_plain = config.outputs.reduce == "none" and not config.outputs.is_separate and not config.dataset.is_series
        takes_means = bool(self.train_error) or getattr(self, "draws", 0) > 0 or self.solver not in _WITH_VARIANCE
        return is_plain and not takes_means and not self.goes_on_disk(config)

    def fold_size(self, n: int) -> int:
        """How many of n training points a kernel is trained on."""
        return n

    def test_size(self, config: ConfigView) -> int:
        """How many test points a kernel has, as far as it is known before the data are read."""
        return config.dataset.test_size() or 0

    def bytes_of(self, config: ConfigView, n: int, n_test: int | None = None) -> int:
        """Bytes of an evaluation with n interpolation points in memory. n_test: None for all test points."""
        from kfx.numerics.memory import bytes_in_memory

        n_test = self.test_size(config) if n_test is None else n_test
        return bytes_in_memory(n, n_test, _ITEMSIZE[config.device.dtype])

    def goes_on_disk(self, config: ConfigView, n: int | None = None, n_test: int | None = None) -> bool:
        """Whether the Gram matrix of n interpolation points does not fit in memory. n: None for the most of them."""
        try:
            n = min(n or max(self.n_interpolation or [2**62]), config.training_size())
            return self.solver != "nystrom" and self.bytes_of(config, n, n_test) > self.memory_bytes()
        except DataError:  # reported by the check
            return False

    def leaves_out_in_folds(self, config: ConfigView) -> bool:
        """Whether points are left out in folds in place of one by one, since their matrix does not fit in memory."""
        selections = [config.regularization.selected(), self.selected(config)]
        selections += [config.regularization.left_out(config)] * bool(config.optimizer.fall_back)
        points = [each.points or 2**62 for each in selections if each.how == "leave_one_out"]
        return bool(points) and self.goes_on_disk(config, max(points), n_test=0)

    def memory_bytes(self) -> int:
        """Bytes that a Gram matrix with its factor may take in memory."""
        from kfx.numerics.memory import machine_bytes

        return self.memory or machine_bytes() // 2

    def _usual_centres(self, config: ConfigView) -> int:
        """The number of centres where none is asked for."""
        fitting = int((self.memory_bytes() / BYTES_OF_CENTRES) ** 0.5)
        try:
            return max(min(_USUAL_CENTRES, config.training_size(), fitting), 2)
        except DataError:  # reported by the check
            return _USUAL_CENTRES

    def approximation(self, config: ConfigView) -> Approximation | None:
        """The settings of Nyström regression; None with another solver."""
        if self.solver != "nystrom":
            return None
        from kfx.evaluation.nystrom import Approximation

        count = self.centres or self._usual_centres(config)
        return Approximation(count, self.choose or "rpcholesky", config.regularization.build(), config.seed)

    def parts(self, whole: Dataset, rng: np.random.Generator) -> list[Dataset]:
        """The data sets on which kernels are trained and evaluated: the whole one, or a fold each."""
        return [whole]

    @abc.abstractmethod
    def splits(self, folds: Sequence[Dataset], streams: Streams) -> list[Split]:
        """The evaluations of one kernel, as (repeat, fold, order of training points)."""

    def selected(self, config: ConfigView) -> Selection:
        """Return how λ is decided for the evaluated kernels: as for initial ones if the config does not say.

        Points that are left out say little after a flow, which moved them by their own targets: there λ is chosen again
        only if the evaluation asks for it.
        """
        from kfx.numerics.regularization import Regularization

        own, usual = self.regularization, config.regularization
        if own.value in (None, *CHOSEN):
            again = own.value is not None or not config.optimizer.moves_points
            return replace(usual.selected(own.value, own.scale), again=again)
        listed = own.value if isinstance(own.value, list) else [own.value]
        fixed = [Regularization(float(value), own.scale or usual.scale) for value in listed]
        return replace(usual.selected("fixed"), values=fixed)

    def scoring(self, config: ConfigView) -> Scoring:
        """Settings of how predictions are made and judged."""
        from kfx.evaluation.scoring import Scoring
        from kfx.numerics.regularization import Regularization

        selection, start = self.selected(config), config.regularization.build()
        usual = [Regularization(start.value, self.regularization.scale or start.scale)]
        return Scoring(
            usual if selection.is_chosen else selection.values,
            own=selection.is_chosen or self.regularization.value is None,
            solver=self.solver,
            rcond=self.rcond,
            tolerance=self.tolerance,
            variance=self.posterior_variance,
            clip=None if self.clip is None else (self.clip[0], self.clip[1]),
            train_error=bool(self.train_error),
            rho=self.rho,
            head=config.objective.has_head,
            calibration=bool(self.calibration),
            approximation=self.approximation(config),
        )

    def check(self, config: ConfigView) -> None:
        if self.solver != "nystrom":
            return
        outputs, optimizer, kernel = config.outputs, config.optimizer, config.kernel
        if config.dataset.is_series or outputs.is_separate:
            of_outputs = "kernels=separate" if outputs.reduce == "none" else f"reduce={outputs.reduce}"
            what = f"dataset={config.dataset.name}" if config.dataset.is_series else f"outputs.{of_outputs}"
            raise ConfigError(
                f"{what}: needs evaluation.solver=cholesky, without centres and choose; nystrom takes one kernel and "
                "no series"
            )
        stays = not optimizer.moves_points or (self.choose == "kmeans" and config.flow.record_layers)
        if self.choose in ("flow", "kmeans") and not (stays and kernel.input_gradients):
            named = f"optimizer={optimizer.name}" if not stays else f"kernel={kernel.name}"
            also = ", or set flow.record_layers=true" if not stays and self.choose == "kmeans" else ""
            raise ConfigError(
                f"evaluation.choose={self.choose}: makes new points, and with {named} the kernel takes training points "
                f"only; use rpcholesky{also}"
            )


@option("evaluation", "default", "Kernel ridge regression on the test points, with the initial and the trained kernel")
class TestPointsOption(EvaluationOption):
    rules = rows(
        needs(CLASSES, "set it to false", "balanced"),
        refuses(lambda own, _: own.repeats > 1, "all {own.repeats} repeats are the same; set repeats=1", "order=file"),
    )

    repeats: int = number(
        1,
        f"whole >= 1 and <= {MOST_REPEATS}",
        "number of repeats, each with other interpolation points, drawn at random",
    )
    draws: int = number(
        0,
        "whole >= 0 and <= 999",
        "number of disjoint draws of the smallest N_I, evaluated into draws.csv; "
        "a picture shows the best and the worst",
    )
    balanced: bool = flag(False, "interpolation points hold equal numbers of each class")
    order: str = word("random | file", "order of interpolation points; file: the first N_I training points, unshuffled")

    def standing_for(self, config: ConfigView) -> Option:
        if not config.dataset.is_series or type(self) is not TestPointsOption:
            return self
        rollout = OPTIONS["evaluation"]["rollout"]
        return rollout(**{name: getattr(self, name) for name in self.fields()})

    def splits(self, folds: Sequence[Dataset], streams: Streams) -> list[Split]:
        from kfx.evaluation.scoring import interpolation_order

        rng = streams["evaluation"] if self.order == "random" else None
        orders = [interpolation_order(folds[0], self.balanced, rng) for _ in range(self.repeats)]
        return [(repeat, 0, order) for repeat, order in enumerate(orders)]

    def check(self, config: ConfigView) -> None:
        super().check(config)
        size = config.training_size()
        if self.draws and self.solver in ("conjugate_gradients", "nystrom"):
            raise ConfigError(f"evaluation.draws={self.draws}: of small subsets; needs evaluation.solver=cholesky")
        if self.draws * min(self.n_interpolation or [size]) > size:
            raise ConfigError(f"evaluation.draws={self.draws}: of the smallest N_I, {size} points do not hold so many")
        if self.rho and len(self.n_interpolation or ()) < 2:
            raise ConfigError("evaluation.rho=true: compares with the largest N_I; give two or more in n_interpolation")
        if config.dataset.test_size() == 0:
            asked = "test" if getattr(config.dataset, "n_test", 0) is None else "n_test"  # of own data
            raise ConfigError(
                f"dataset.{asked}=0: leaves no test point; take some, or evaluation=k_fold, which tests on folds"
            )
