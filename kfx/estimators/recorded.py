"""A recorded run as a fitted estimator, and its predictions for new rows."""

from __future__ import annotations

import contextlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from omegaconf import OmegaConf

from kfx.data.array_file import PointEncoding, count
from kfx.data.dataset import Dataset
from kfx.data.new_rows import Chunk, Encoding
from kfx.estimators.base import KernelFlow
from kfx.estimators.classifier import KernelFlowClassifier
from kfx.estimators.frames import as_frame
from kfx.estimators.regressor import KernelFlowRegressor
from kfx.estimators.settings import EVALUATION, NESTED
from kfx.evaluation.follower import some_of
from kfx.experiment.config import Config, typed
from kfx.files import whole_path
from kfx.kernels import Kernel
from kfx.numerics import threads
from kfx.numerics.process import exclusively
from kfx.numerics.regularization import Regularization
from kfx.numerics.streams import Streams
from kfx.outcomes import DataError, RecordError, Status
from kfx.record.fitted import recorded_solution
from kfx.record.origin import require_same_data
from kfx.record.reading import Run, load_run, read_environment, read_metrics
from kfx.running import stages
from kfx.running.context import Machine
from kfx.running.left_out import bare
from kfx.screen.progress import Steps, say

if TYPE_CHECKING:
    import pandas as pd


_MOST_ROWS, _MOST_PAIRS = 20_000, 40_000_000
"""New rows, and pairs of them with interpolation points, that are in memory at once."""


@dataclass(frozen=True)
class Model:
    """A run's trained kernel with the interpolation points and λ of its first evaluation at the largest N_I; of a
    cross-validation, those of the last fold.

    data: the points of that evaluation, before preprocessing. estimator: takes points after it. encoding: how new rows
    are read.
    """

    config: Config
    data: Dataset
    estimator: KernelFlow
    encoding: Encoding | PointEncoding

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
        streams = Streams(config.seed)
        whole = config.dataset.load(streams["data"])
        parts = config.evaluation.parts(whole, streams["data"])
        prepared = [config.outputs.applied(config.dataset.preprocessed(part)) for part in parts]
        splits = config.evaluation.splits(prepared, streams)
        repeat, _, order = next(split for split in splits if split[1] == len(parts) - 1)
        last = prepared[-1]
        order = order[: max(config.evaluation.n_interpolation or [len(last.x_train)])]
        through_centres = config.evaluation.solver == "nystrom"
        if not through_centres and 16 * len(order) ** 2 > config.evaluation.memory_bytes():
            raise RecordError(f"{run.directory}: the Gram matrix of {len(order)} points does not fit in memory")
        estimator = _unfitted(run, config, last, whole.classes)
        count = config.device.threads or threads.available()
        machine = Machine(config.device.pick(), getattr(torch, config.device.dtype), count, {})
        of_evaluation = stages.threads_for(config, prepared, machine)[1]

        def solved(model: KernelFlow, data: Dataset, kernel: Kernel, metric: str) -> KernelFlow:
            """The model with a recorded kernel, and with the λ recorded under a metric."""
            model._threads = of_evaluation, count
            model._dtype, model._device = machine.dtype, machine.device
            model._allow_tf32 = config.device.allow_tf32
            kernel = kernel if machine.device.type == "cpu" else kernel.to(machine.dtype, machine.device)
            with exclusively():
                model.kernel_ = bare(kernel).fixed_on(some_of(model._tensor(data.x_train)))
            model.regularization_ = Regularization(_regularization(run, repeat, len(order), metric), "absolute")
            model.n_features_in_, model._names = data.x_train.shape[1], data.features
            model._keep_units(data)
            if through_centres:
                own = recorded_solution(run.directory, machine.device)
                model._take(own.of_two_classes() if _is_one_column_of_classes(data) else own)
            else:
                model._solve(data.x_train[order], _targets(data)[order])
            return model

        effective = "effective_regularization"
        if config.outputs.is_separate:
            each = enumerate(zip(last.components(), run.kernels, strict=True))
            estimator.components_ = [
                solved(_unfitted(run, config, own, whole.classes)._of_one_output(), own, kernel, f"{effective}.{c}")
                for c, (own, kernel) in each
            ]
            for model in estimator.components_:
                model._is_flat = True
            estimator.kernel_, estimator.n_features_in_ = run.kernel, last.x_train.shape[1]
            estimator._keep_units(last)
        else:
            solved(estimator, last, run.kernel, effective)
        return cls(config, parts[-1], estimator, whole.encoding or PointEncoding(parts[-1].x_train.shape[1:]))

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
        model = self.estimator.components_[0] if self.estimator.components_ else self.estimator
        size = min(max(_MOST_PAIRS // len(model._interpolant.points), 500), _MOST_ROWS)
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
        prepared = self.config.dataset.preprocessed(replace(self.data, x_test=x, y_test=nothing, labels_test=None))
        of_classes = isinstance(self.estimator, KernelFlowClassifier)
        scores, deviation = self.estimator._predicted(prepared.x_test, not of_classes)
        mean = scores
        if (clip := self.config.evaluation.scoring(self.config).clip) is not None:
            mean = scores.clip(*clip)
        if isinstance(self.estimator, KernelFlowClassifier):
            found = pd.DataFrame(self.estimator._probabilities(scores), columns=self.columns[1:])
            found.insert(0, "prediction", self.estimator.classes_[mean.argmax(axis=1)])
            return found
        assert deviation is not None
        return pd.DataFrame(np.stack([mean, deviation], axis=2).reshape(len(x), -1), columns=self.columns)

    @property
    def columns(self) -> list[str]:
        """The columns of predictions: `prediction` and `deviation` of a target; `prediction.<target>` and
        `deviation.<target>` of several; of classes `prediction`, the class, and `probability.<class>`."""
        if isinstance(self.estimator, KernelFlowClassifier):
            return ["prediction", *(f"probability.{name}" for name in self.estimator.classes_)]
        outputs = self.data.y_train.shape[1]
        if outputs == 1:
            return ["prediction", "deviation"]
        names = self.config.dataset.target_names() or tuple(map(str, range(outputs)))
        return [f"{kind}.{name}" for name in names for kind in ("prediction", "deviation")]


NEW_PREDICTIONS = "new_predictions.csv"
_MOST_NAMED = 20


def write_predictions(model: Model, file: Path, output: Path | None, *, strict: bool = False) -> None:
    """Write the predictions for the rows of a file as CSV to `output`, to the screen if it is None.

    Rows that cannot be read are named and left out, those with a word that no training row has are named; with `strict`
    the first one is a DataError.
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
    for said, what in ((" is left out", "are left out"), ("", "hold words that no training row has")):
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


def _unfitted(run: Run, config: Config, data: Dataset, classes: Sequence[str]) -> KernelFlow:
    """The estimator with the settings of the run, and with its classes, by name if they have names, or the shape of its
    targets."""
    settings = {name: OmegaConf.to_container(run.config[name], resolve=True) for name in NESTED}
    settings |= {"targets": config.dataset.targets, "solver": "cholesky"}
    if config.evaluation.solver == "nystrom":
        settings |= {name: getattr(config.evaluation, name) for name in EVALUATION}
    settings |= {"n_interpolation": max(config.evaluation.n_interpolation or [0]) or None, "random_state": config.seed}
    if data.labels_train is None:
        regressor = KernelFlowRegressor(**settings)  # type: ignore[arg-type]
        regressor._is_flat = data.y_train.shape[1] == 1
        return regressor
    classifier = KernelFlowClassifier(**settings)  # type: ignore[arg-type]
    names = classes or config.dataset.class_names() or [str(i) for i in range(_targets(data).shape[1])]
    of_numbers = all(re.fullmatch(r"0|-?[1-9][0-9]*", name) for name in names)
    classifier.classes_ = np.array([int(name) for name in names] if of_numbers else names)
    return classifier


def _targets(data: Dataset) -> np.ndarray:
    """The targets of training, with two columns for classes ±1, whose difference has the same prediction."""
    y = data.targets
    return np.concatenate([1 - y, 1 + y], axis=1) / 2 if _is_one_column_of_classes(data) else y


def _is_one_column_of_classes(data: Dataset) -> bool:
    return data.labels_train is not None and data.targets.shape[1] == 1


def _regularization(run: Run, repeat: int, size: int, metric: str) -> float:
    """The λ of an evaluation of the trained kernel, recorded as a metric: the first, if there are several."""
    rows = run.evaluation
    own = rows[(rows["kernel"] == "trained") & (rows["repeat"] == repeat) & (rows["n_interpolation"] == size)]
    found = own.loc[own["metric"] == metric, "value"].dropna()
    if found.empty:
        raise RecordError(f"{run.directory}: the evaluation of its trained kernel failed; it cannot predict")
    return float(found.iloc[0])
