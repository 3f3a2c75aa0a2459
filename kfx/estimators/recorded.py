"""A recorded run as a fitted estimator, and its predictions for new rows."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from omegaconf import OmegaConf

from kfx.data.array_file import PointEncoding, count
from kfx.data.dataset import Dataset
from kfx.data.new_rows import Chunk, Encoding
from kfx.data.preparation import Preparation
from kfx.data.preparation import recorded as preparations
from kfx.estimators.frames import as_frame
from kfx.estimators.parameters import EVALUATION, NESTED
from kfx.evaluation.predictor import Arithmetic, Predictor, Separate, without_points
from kfx.evaluation.scoring import EFFECTIVE
from kfx.experiment.config import Config, typed
from kfx.files import whole_path
from kfx.kernels import Kernel
from kfx.kernels.regularized import bare
from kfx.numerics import calibration, threads
from kfx.numerics.arrays import some_of
from kfx.numerics.memory import bytes_in_memory
from kfx.numerics.process import exclusively
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.outcomes import DataError, RecordError, Status
from kfx.record.origin import require_same_data
from kfx.record.reading import Run, load_run, read_environment, read_metrics
from kfx.record.solution import recorded_exact, recorded_solution
from kfx.running import stages
from kfx.running.context import Machine
from kfx.screen.progress import Steps, say

if TYPE_CHECKING:
    import pandas as pd

    from kfx.estimators.base import KernelFlow

_MOST_ROWS, _MOST_PAIRS = 20_000, 40_000_000
"""New rows, and pairs of them with interpolation points, that are in memory at once."""


@dataclass(frozen=True)
class Model:
    """A run's trained kernel with the interpolation points and λ of its first evaluation at the largest N_I; of a
    cross-validation, those of the last fold.

    data: the points of that evaluation, before preprocessing. preparation: as the run chose it; None: as configured.
    predictor: takes points after it. encoding: how new rows
    are read. classes: the names of classes, (classes,), texts or whole numbers; None for targets that are numbers.
    """

    run: Run
    config: Config
    data: Dataset
    preparation: Preparation | None
    predictor: Predictor | Separate
    encoding: Encoding | PointEncoding
    classes: np.ndarray | None

    @classmethod
    def of_run(cls, run: Run) -> Model:
        """Read the run's data again and solve for the coefficients.

        Raises RecordError for a run that did not complete, ChangedError where its config, data or files are not those
        of the run, DataError where a data file is missing.
        """
        if run.metrics["status"] != Status.COMPLETED:
            raise RecordError(f"{run.directory}: is {run.metrics['status']}; only a completed run can predict")
        if (difference := run.require_unchanged()) is not None:
            say(f"kfx: warning: {difference}")
        config = typed(run.config)
        require_same_data(run.directory, config, read_environment(run.directory))
        if config.evaluation.solver == "lstsq":
            raise RecordError(f"{run.directory}: evaluation.solver=lstsq: predictions use Cholesky factors")
        if isinstance(listed := config.evaluation.regularization.value, list) and len(listed) > 1:
            first = f"predictions take the first of several lambda that it evaluated, {listed[0]:g}"
            say(f"kfx: warning: {run.directory}: {first}")
        streams = Streams(config.seed)
        whole = config.dataset.load(streams["data"])
        parts = config.evaluation.parts(whole, streams["data"])
        how = preparations(run.metrics, str(run.directory), len(parts))
        prepared = [
            config.outputs.applied(config.dataset.preprocessed(part, own)) for part, own in zip(parts, how, strict=True)
        ]
        splits = config.evaluation.splits(prepared, streams)
        repeat, _, order = next(split for split in splits if split[1] == len(parts) - 1)
        last = replace(prepared[-1], inflation=_inflation(run, config))
        order = order[: max(config.evaluation.n_interpolation or [len(last.x_train)])]
        count = config.device.threads or threads.available()
        machine = Machine(config.device.pick(), getattr(torch, config.device.dtype), count, {})
        of_evaluation = stages.threads_for(config, prepared, machine)[1]
        arithmetic = Arithmetic(machine.dtype, machine.device, (of_evaluation, count), config.device.allow_tf32)

        def solved(data: Dataset, kernel: Kernel, metric: str) -> Predictor:
            """A recorded kernel with its solution for the λ recorded under a metric."""
            found = Regularization(_regularization(run, repeat, len(order), metric), "absolute")
            kernel, units = kernel.to(machine.dtype, machine.device), replace(without_points(data), maps=())
            with exclusively():
                kernel = bare(kernel).fixed_on(some_of(arithmetic.tensor(data.x_train)))
            if config.evaluation.solver == "nystrom":
                own = recorded_solution(run.directory, machine.device)
                own = own.of_two_classes() if _is_one_column_of_classes(data) else own
                return Predictor(kernel, own, units, arithmetic)
            x, y = data.x_train[order], _targets(data)[order]
            weights = None if data.weights is None else data.weights[order]
            if weights is None and not (config.outputs.is_separate or _is_one_column_of_classes(data)):
                with arithmetic.block():
                    exact = recorded_exact(run.directory, kernel, arithmetic.tensor(x), torch.as_tensor(y), say)
                if exact is not None:
                    return Predictor(kernel, exact, units, arithmetic)
            if bytes_in_memory(len(order), 0, machine.dtype.itemsize) > config.evaluation.memory_bytes():
                raise RecordError(
                    f"{run.directory}: has no solution, and the Gram matrix of {len(order)} points does not fit in "
                    "memory; run it again with a larger evaluation.memory"
                )
            return Predictor.solved(kernel, x, y, found, units, arithmetic, weights)

        predictor: Predictor | Separate
        if config.outputs.is_separate:
            each = [
                solved(own, kernel, f"{EFFECTIVE}.{c}")
                for c, (own, kernel) in enumerate(zip(last.components(), run.kernels, strict=True))
            ]
            predictor = Separate(each, replace(without_points(last), inflation=1.0, maps=()))
        else:
            predictor = solved(last, run.kernel, EFFECTIVE)
        last_axis = getattr(config.dataset, "channels", "first") == "last"
        shape = parts[-1].x_train.shape[1:]
        encoding = whole.encoding or PointEncoding(shape, "last" if last_axis else "first")
        return cls(run, config, parts[-1], how[-1], predictor, encoding, _classes(config, whole, last))

    def predict_all(self, rows: pd.DataFrame | np.ndarray) -> pd.DataFrame:
        """Return the predictions for the rows of a frame, with its index, or for points before preprocessing, (n, …).

        Raises DataError, naming the row, for a value that cannot be read.
        """
        import pandas as pd

        if self.config.dataset.is_series:
            raise DataError("the run forecasts a series; kfx predict RUN FILE goes on from the last rows of a file")
        rows = as_frame(rows)
        if isinstance(rows, pd.DataFrame):
            chunk = self.encoding.rows(rows)
        else:
            own = self.encoding
            chunk = (own if isinstance(own, PointEncoding) else PointEncoding(self.data.x_train.shape[1:])).rows(rows)
        for row, what in chunk.problems.items():
            raise DataError(f"row {row}: {what}")
        for what in dict.fromkeys(chunk.unknown.values()):
            warnings.warn(what, stacklevel=3)
        found = self.predict(chunk.x)
        return found.set_index(rows.index) if isinstance(rows, pd.DataFrame) else found

    def predictions(self, path: Path) -> Iterator[tuple[Chunk, pd.DataFrame]]:
        """Read new rows from a file, and yield them in chunks with their predictions: `row`, from 1, and `columns`."""
        size = min(max(_MOST_PAIRS // len(self.predictor.parts[0].interpolant.points), 500), _MOST_ROWS)
        for chunk in self.encoding.chunks(path, size):
            predicted = self.predict(chunk.x)
            predicted.insert(0, "row", chunk.rows)
            yield chunk, predicted

    def predict(self, x: np.ndarray) -> pd.DataFrame:
        """Return predictions at points before preprocessing, (n, …), with the columns `columns`."""
        import pandas as pd

        if not len(x):
            return pd.DataFrame(columns=self.columns)
        nothing = np.zeros((len(x), self.data.y_test.shape[1]))
        rows = replace(self.data, x_test=x, y_test=nothing, labels_test=None)
        prepared = self.config.dataset.preprocessed(rows, self.preparation)
        mean, deviation = self.predictor(prepared.x_test, self.classes is None)
        scores = mean
        if (clip := self.config.evaluation.scoring(self.config).clip) is not None:
            mean = mean.clip(*clip)
        if self.classes is not None:
            found = pd.DataFrame(self.predictor.parts[0].probabilities(scores), columns=self.columns[1:])
            found.insert(0, "prediction", self.classes[mean.argmax(axis=1)])
            return found
        assert deviation is not None
        if self.predictor.units.warp is not None:
            low, high = self.predictor.interval(prepared.x_test, calibration.COVERED)
            return pd.DataFrame(np.concatenate([mean, deviation, low, high], axis=1), columns=self.columns)
        return pd.DataFrame(np.stack([mean, deviation], axis=2).reshape(len(x), -1), columns=self.columns)

    @property
    def columns(self) -> list[str]:
        """The columns of predictions: `prediction` and `deviation` of a target, with a transformed one also `low` and
        `high`, the ends of its interval of 95 %; `prediction.<target>` and
        `deviation.<target>` of several; of classes `prediction`, the class, and `probability.<class>`."""
        if self.classes is not None:
            return ["prediction", *(f"probability.{name}" for name in self.classes)]
        outputs = self.data.y_train.shape[1]
        if outputs == 1:
            return ["prediction", "deviation", *(("low", "high") if self.predictor.units.warp is not None else ())]
        names = self.config.dataset.target_names() or tuple(map(str, range(outputs)))
        return [f"{kind}.{name}" for name in names for kind in ("prediction", "deviation")]

    def estimator(self) -> KernelFlow:
        """Return it as a fitted estimator with the settings of the run; it takes points after preprocessing."""
        from kfx.estimators.classifier import KernelFlowClassifier  # a prediction does without scikit-learn
        from kfx.estimators.regressor import KernelFlowRegressor

        config, evaluation = self.config, self.config.evaluation
        settings = {name: OmegaConf.to_container(self.run.config[name], resolve=True) for name in NESTED}
        settings |= {"scale": None, "targets": config.dataset.targets, "solver": "cholesky"}
        if evaluation.solver == "nystrom":
            settings |= {name: getattr(evaluation, name) for name in EVALUATION}
        settings |= {"n_interpolation": max(evaluation.n_interpolation or [0]) or None, "random_state": config.seed}
        if self.classes is None:
            return KernelFlowRegressor(**settings).holding(self.predictor)  # type: ignore[arg-type]
        classifier = KernelFlowClassifier(**settings).holding(self.predictor)  # type: ignore[arg-type]
        classifier.classes_ = self.classes
        return classifier


NEW_PREDICTIONS = "new_predictions.csv"
_MOST_NAMED = 20


def write_predictions(model: Model, file: Path, output: Path | None, *, strict: bool = False) -> None:
    """Write the predictions for the rows of a file as CSV to `output`, to the screen if it is None.

    Rows that cannot be read are named and left out, those with a word that no training row has, or without a value that
    all have, are named; with `strict` the first one is a DataError.
    """
    done, counts, is_first, total = 0, Counter[str](), True, count(file)
    with contextlib.ExitStack() as held:
        stream = sys.stdout.buffer if output is None else held.enter_context(output.open("wb"))
        steps = held.enter_context(Steps("rows", total))
        for chunk, predicted in model.predictions(file):
            for row, what in sorted({**chunk.problems, **chunk.unknown}.items()):
                if strict:
                    raise DataError(f"{file}: row {row}: {what}")
                said = " is left out" if row in chunk.problems else ""
                counts[said] += 1
                if counts[said] <= _MOST_NAMED:
                    say(f"kfx: {file}: row {row}{said}: {what}")
            stream.write(predicted.to_csv(index=False, header=is_first).encode())
            done, is_first = done + len(predicted), False
            steps.reach(min(done + counts[" is left out"], total))
        if not done:
            raise DataError(f"{file}: no row can be read")
    for said, what in ((" is left out", "are left out"), ("", "hold words, or miss values, as no training row")):
        if counts[said] > _MOST_NAMED:
            say(f"kfx: {file}: {counts[said] - _MOST_NAMED} more rows {what}")


def predict_as_configured(config: Config, directory: Path) -> None:
    """Write `new_predictions.csv` into the directory of a completed run if `dataset.predict` of a config, which the
    person gave, names a file."""
    file = getattr(config.dataset, "predict", None)
    if file is None or not (directory / "metrics.json").is_file():
        return
    if read_metrics(directory)["status"] == Status.COMPLETED:
        with whole_path(directory / NEW_PREDICTIONS) as partial:
            write_predictions(Model.of_run(load_run(directory)), Path(file).expanduser(), partial)


def _classes(config: Config, whole: Dataset, data: Dataset) -> np.ndarray | None:
    """The names of classes, numbers if all are whole numbers; None for targets that are numbers."""
    if data.labels_train is None:
        return None
    names = whole.classes or config.dataset.class_names() or [str(i) for i in range(_targets(data).shape[1])]
    of_numbers = all(re.fullmatch(r"0|-?[1-9][0-9]*", name) for name in names)
    return np.array([int(name) for name in names] if of_numbers else names)


def _targets(data: Dataset) -> np.ndarray:
    """The targets of training, with two columns for classes ±1, whose difference has the same prediction."""
    y = data.targets
    return np.concatenate([1 - y, 1 + y], axis=1) / 2 if _is_one_column_of_classes(data) else y


def _is_one_column_of_classes(data: Dataset) -> bool:
    return data.labels_train is not None and data.targets.shape[1] == 1


def _inflation(run: Run, config: Config) -> np.ndarray | float:
    """The recorded factor of the deviations of the last fold; RecordError for one that is no number above 0."""
    found = run.metrics.get("inflation", [1.0])
    if not isinstance(found, list) or not all(isinstance(own, int | float) and 0 < own < np.inf for own in found):
        raise RecordError(f"{run.directory}: metrics.json: inflation is no list of numbers above 0")
    if not config.outputs.is_separate or len(found) == 1:
        return float(found[-1])
    return np.array(found[-(len(found) // getattr(config.evaluation, "folds", 1)) :], dtype=float)


def _regularization(run: Run, repeat: int, size: int, metric: str) -> float:
    """The λ of an evaluation of the trained kernel, recorded as a metric: the first, if there are several."""
    rows = run.evaluation
    own = rows[(rows["kernel"] == "trained") & (rows["repeat"] == repeat) & (rows["n_interpolation"] == size)]
    found = own.loc[own["metric"] == metric, "value"].dropna()
    if found.empty:
        raise RecordError(f"{run.directory}: the evaluation of its trained kernel failed; it cannot predict")
    return float(found.iloc[0])
