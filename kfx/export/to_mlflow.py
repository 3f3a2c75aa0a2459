"""Finished runs in an MLflow store."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from kfx.export.finished import Finished
from kfx.outcomes import ConfigError, Status
from kfx.record.output import require_no_record
from kfx.version import to_install

USUAL = "sqlite:///mlflow.db"
_MOST_METRICS, _MOST_PARAMS, _MOST_TEXT = 1000, 100, 500
Series = tuple[str, np.ndarray, np.ndarray, np.ndarray]
"""Name, steps, times and values, as `Finished.series` has them."""
_ENDS = {Status.COMPLETED: "FINISHED", Status.FAILED: "FAILED", Status.INTERRUPTED: "KILLED"}


def write(runs: Sequence[Finished], place: str | None, project: str) -> Iterator[str]:
    """Log each run that the store does not have yet, by its identity and status; yield a message for each.

    An entry that an interruption left half written is written anew. ConfigError without MLflow, and for a store that
    cannot be used.
    place: a tracking URI, by default MLFLOW_TRACKING_URI or `sqlite:///mlflow.db`. project: the experiment's name.
    """
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError as error:
        raise ConfigError(f"kfx export mlflow: needs MLflow; {to_install('mlflow')}") from error
    uri = place or os.environ.get("MLFLOW_TRACKING_URI") or USUAL
    if "://" not in uri:
        raise ConfigError(f"--to {uri}: expected a tracking URI, as {USUAL} or http://HOST:PORT")
    scheme, _, at = uri.partition("://")
    if scheme in ("sqlite", "file"):
        require_no_record("--to", Path(at.removeprefix("/") if scheme == "sqlite" else at).parent)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own libraries
        try:
            client = MlflowClient(tracking_uri=uri)
            found = client.get_experiment_by_name(project)
            experiment = found.experiment_id if found is not None else client.create_experiment(project)
            for finished in runs:
                wanted = f"tags.`kfx.identity` = '{finished.identity}' and tags.`kfx.status` = '{finished.status}'"
                there = client.search_runs([experiment], wanted)
                if any(entry.info.status in _ENDS.values() for entry in there):
                    yield f"{finished.name}: is there already"
                    continue
                for half in there:
                    client.delete_run(half.info.run_id)
                tags = {
                    "mlflow.runName": finished.name,
                    "kfx.identity": finished.identity,
                    "kfx.status": str(finished.status),
                    "kfx.directory": str(finished.run.directory),
                }
                begun = round(1000 * finished.started)
                own = client.create_run(experiment, start_time=begun, tags=tags).info.run_id
                params = [Param(key, str(value)[:_MOST_TEXT]) for key, value in finished.settings().items()]
                for batch in _batches(params, _MOST_PARAMS):
                    client.log_batch(own, params=batch)
                metrics = [
                    Metric(name, float(value), round(1000 * when), int(step))
                    for name, steps, times, values in _named(finished.series())
                    for step, when, value in zip(steps, times, values, strict=True)
                ]
                last = max((metric.timestamp for metric in metrics), default=begun)
                metrics += [Metric(name, value, last, 0) for name, value in finished.results().items()]
                for batch in _batches(metrics, _MOST_METRICS):
                    client.log_batch(own, metrics=batch)
                for path in finished.files():
                    folder = path.parent.relative_to(finished.run.directory)
                    client.log_artifact(own, str(path), None if str(folder) == "." else str(folder))
                client.set_terminated(own, _ENDS[finished.status], last)
                yield f"{finished.name}: run {own}"
        except (MlflowException, SQLAlchemyError) as error:
            raise ConfigError(f"--to {uri}: {' '.join(str(error).split())}") from error


def _named(series: Iterable[Series]) -> Iterator[Series]:
    """Series under names that MLflow takes; those that would become equal get numbers."""
    taken: set[str] = set()
    for name, steps, times, values in series:
        plain, number = re.sub(r"[^\w .:/-]", "_", name, flags=re.ASCII), 1
        own = plain
        while own in taken:
            number += 1
            own = f"{plain}-{number}"
        taken.add(own)
        yield own, steps, times, values


def _batches(items: list, size: int) -> Iterator[list]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
