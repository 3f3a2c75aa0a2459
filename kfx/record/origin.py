"""Whether a record is still what its run left: its config, its data and its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from omegaconf import DictConfig

from kfx.config.plugins import Plugin, require_plugins
from kfx.experiment.config import Config, sources, typed
from kfx.experiment.identity import checksums, data_checksums, identity
from kfx.files import Document, as_json, is_inside
from kfx.outcomes import ChangedError, RecordError
from kfx.record.columns import SEAL
from kfx.version import __version__

_METRICS, _CONFIG = "metrics.json", "config.yaml"
_RESULTS = (
    *("environment.json", "trace.csv", "evaluation.csv", "held_out.csv", "predictions.csv", "predictions.npz"),
    *("flow.csv", "follow.csv", "attractor.csv", "solution.npz", "flow-*.npz", "layers-*.bin", "parameters-*.npz"),
    *("forecasts.csv", "starts.csv", "kernel_check.csv", "draws.csv", "draws.npz", "targets.npy", "precision.json"),
)
_OTHERS = (
    *(_METRICS, _CONFIG, "overrides.yaml", "history.csv"),
    *("factor.bin", "checkpoint*", "snapshots", "figures", "grams", ".lock", ".writer.json"),
)

TAKEN = "holds a run of another config, data or version of kfx; choose another folder"
"""Why a run does not begin in a folder."""


def require_own_files(directory: Path) -> None:
    """RecordError if a file or folder of a record is a link that leads out of it, to be read or written over."""
    for path in directory.iterdir() if directory.is_dir() else ():
        is_ours = path.is_symlink() and any(path.match(pattern) for pattern in (*_RESULTS, *_OTHERS))
        if is_ours and not is_inside(directory, path):
            raise RecordError(f"{path}: is a link that leads out of the record; put there what it links to")


def seal(directory: Path, metrics: Document) -> dict[str, str]:
    """The checksums of a run's files, and of `metrics`, which are about to be written."""
    paths = sorted(path for pattern in (_CONFIG, *_RESULTS) for path in directory.glob(pattern))
    return checksums(paths) | {_METRICS: _digest(metrics)}


def _digest(metrics: Document) -> str:
    """SHA-256 of all other entries of `metrics.json`."""
    others = as_json({name: value for name, value in metrics.items() if name != SEAL})
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def require_unchanged(
    directory: Path, raw: DictConfig, metrics: Document, environment: Document, files: Sequence[str] | None = None
) -> str | None:
    """ChangedError if the config or a file with results is not what the run left, RecordError if one is missing.

    Returns a message if another version computed the run, else None. The data files are not read. files: the files of
    results to look at; None for all.
    """
    _require_results(directory, metrics, files)
    if not _holds_its_config(directory, metrics):  # an edit may concern only pictures or threads
        require_plugins(metrics.get("plugins", []), str(directory))
        return require_same_config(directory, raw, metrics, environment)
    version = str(environment.get("kfx"))
    return None if version == __version__ else _of_another_version(directory, [version], [__version__])


def require_same_config(directory: Path, raw: DictConfig, metrics: Document, environment: Document) -> str | None:
    """ChangedError if the config is not that of the run, by the run's identity.

    Returns a message if another version of kfx, or of a package with its options, computed the run, else None. The data
    files are not read; the checksums that the run recorded stand for them.
    """
    config, plugins = typed(raw), [Plugin(**each) for each in metrics.get("plugins", [])]
    version, data = str(environment.get("kfx", "of an unknown version")), environment.get("data_sha256", {})
    then = version, *sorted(set(environment.get("options_from", {}).values()))
    here = __version__, *sorted(set(sources(config).values()))
    of_config = partial(identity, raw, config, plugins, data=data, version=version)
    is_same = metrics.get("identity") in (of_config(), of_config(in_folds=True))  # as its machine's memory had it
    is_edited = SEAL in metrics and not _holds_its_config(directory, metrics)
    if not is_same and (is_edited or then == here):
        raise ChangedError(f"{directory}: its config.yaml has changed since it ran; use the new one with kfx run")
    return None if then == here else _of_another_version(directory, then, here)


def _of_another_version(directory: Path, then: Sequence[str], here: Sequence[str]) -> str:
    return f"{directory}: was computed by kfx {', '.join(then)}; this is kfx {', '.join(here)}"


def _holds_its_config(directory: Path, metrics: Document) -> bool:
    """Whether the config is that of a completed run to the last byte."""
    held = metrics.get(SEAL)
    return isinstance(held, Mapping) and checksums([directory / _CONFIG]) == {_CONFIG: held.get(_CONFIG)}


def _require_results(directory: Path, metrics: Document, files: Sequence[str] | None) -> None:
    held = metrics.get(SEAL)
    if held is None:  # an unfinished run, or one of an older version
        return
    is_whole = isinstance(held, Mapping) and all(Path(name).name == name for name in held)
    if not is_whole or held.get(_METRICS) != _digest(metrics):
        raise ChangedError(f"{directory / _METRICS}: is damaged, or has changed since the run wrote it; run it anew")
    for name in sorted(set(held) - {_METRICS} if files is None else {*files} & set(held)):
        path = directory / name
        if not path.is_file():
            raise RecordError(f"{path}: is missing; bring it back from a copy, or run it anew")
        if name != _CONFIG and (now := checksums([path])[name]) != held[name]:
            raise ChangedError(
                f"{path}: is damaged, or has changed since the run wrote it (SHA-256 {_short(held[name])} then, "
                f"{_short(now)} now); bring it back from a copy, or run it anew"
            )


def require_same_data(directory: Path, config: Config, environment: Document) -> None:
    """ChangedError unless each data file is there with the checksum that the run recorded."""
    before, now = environment.get("data_sha256", {}), data_checksums(config)
    changed = [
        f"{name} (SHA-256 {_short(before.get(name))} then, {_short(now.get(name))} now)"
        for name in {**before, **now}
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise ChangedError(
            f"{directory}: its data have changed: {', '.join(changed)}; put the recorded files back, or use the new "
            "ones with kfx run"
        )


def _short(sha256: object) -> str:
    return "none" if sha256 is None else f"{str(sha256)[:12]}…"
