"""What a reader compares a run with: a constant, and a ridge model of scikit-learn, on the run's own data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kfx.data.dataset import Dataset
from kfx.data.files import locate
from kfx.data.preparation import recorded
from kfx.evaluation.scoring import constant_prediction
from kfx.experiment.config import Config, typed
from kfx.numerics.means import column_means
from kfx.numerics.streams import Streams
from kfx.outcomes import KfxError, Status
from kfx.record.findings import Findings
from kfx.record.origin import require_same_data
from kfx.record.reading import Run, read_environment

_MOST_WORK = 10**10
"""Largest points × features² of a ridge model: about ten seconds on one core."""
_PENALTIES = np.logspace(-3, 5, 17)
"""Penalties of the ridge model; leave-one-out errors of training points choose one."""


@dataclass(frozen=True)
class Baselines:
    """Predictors that know no kernel, in the run's main metric.

    values: by name, the mean over folds. explained: the R² of each; empty for classes and for a series. features: the
    number of features of a point; None if the data could not be read. missing: why a value is not there; empty if none
    is missing. points: the number of training points that they are fitted to, all there are; `40 to 41` where folds
    differ.
    """

    values: dict[str, float]
    explained: dict[str, float]
    features: int | None = None
    missing: str = ""
    points: str = ""


def of_run(run: Run) -> Baselines:
    """Read the run's data again and fit the baselines to its training points, all of them.

    Nothing is downloaded, and a file is read only with the checksum that the run recorded.
    """
    if run.metrics["status"] != Status.COMPLETED:
        return Baselines({}, {}, missing=f"the run is {run.metrics['status']}")
    try:
        config = typed(run.config)
        parts = _parts(run, config)
    except (KfxError, OSError) as error:
        return Baselines({}, {}, missing=str(error))
    features = parts[0].x_train[0].size
    if (own := constant_prediction(parts[0])[0]) != Findings.of(run.metrics).metric:
        return Baselines({}, {}, features, f"they are measured in {own}")
    is_of_classes = parts[0].labels_train is not None
    values = {_constant(parts[0]): [constant_prediction(part)[1] for part in parts]}
    work = len(parts) * len(parts[0].x_train) * features * min(features, len(parts[0].x_train))
    if work <= _MOST_WORK:
        values["a ridge classifier" if is_of_classes else "a ridge regression"] = [_ridge(part) for part in parts]
    missing = "" if work <= _MOST_WORK else f"a ridge model of {len(parts[0].x_train)} × {features} values takes long"
    means = {name: float(np.mean(each)) for name, each in values.items()}
    explained = {} if is_of_classes or parts[0].series is not None else _explained(values, parts)
    sizes = sorted({len(part.x_train) for part in parts})
    return Baselines(means, explained, features, missing, " to ".join(map(str, sizes[:: len(sizes) - 1 or 1])))


def _constant(data: Dataset) -> str:
    """The name of what `constant_prediction` predicts."""
    if data.labels_train is not None:
        return "the largest class"
    is_change = data.series is not None and data.series.windows.is_increment
    return "the mean change" if is_change else "the mean of the training targets"


def _parts(run: Run, config: Config) -> list[Dataset]:
    """The run's data as it was trained on: the whole, or a fold each."""
    for dataset, file in config.dataset.files():
        locate(dataset, file, fetch=False)
    run.require_unchanged([])
    require_same_data(run.directory, config, read_environment(run.directory))
    streams = Streams(config.seed)
    whole = config.dataset.load(streams["data"])
    parts = config.evaluation.parts(whole, streams["data"])
    how = recorded(run.metrics, str(run.directory), len(parts))
    return [config.dataset.preprocessed(part, own) for part, own in zip(parts, how, strict=True)]


def _ridge(data: Dataset) -> float:
    """The accuracy, or the mean squared error, of a ridge model of standardized features."""
    from sklearn.linear_model import RidgeClassifierCV, RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x_train, x_test = (x.reshape(len(x), -1) for x in (data.x_train, data.x_test))
    if data.labels_train is not None:
        model = make_pipeline(StandardScaler(), RidgeClassifierCV(_PENALTIES))
        model.fit(x_train, data.labels_train, ridgeclassifiercv__sample_weight=data.weights)
        return data.mean_over_test(model.predict(x_test) == data.labels_test)
    model = make_pipeline(StandardScaler(), RidgeCV(_PENALTIES)).fit(
        x_train, data.y_train, ridgecv__sample_weight=data.weights
    )
    found = model.predict(x_test).reshape(data.y_test.shape)
    return data.mean_over_test(np.square(found - data.y_test))


def _explained(values: dict[str, list[float]], parts: Sequence[Dataset]) -> dict[str, float]:
    """The share of the test targets' variance that is predicted, the mean over folds."""
    means = [column_means(part.y_test, part.weights_test) for part in parts]
    variances = [part.mean_over_test(np.square(part.y_test - mean)) for part, mean in zip(parts, means, strict=True)]
    if min(variances) <= 0:
        return {}
    return {name: float(np.mean(1 - np.array(own) / variances)) for name, own in values.items()}
