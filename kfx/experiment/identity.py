"""The identity of a run: a hash of what it computes, independent of where and how fast."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from kfx.config.option import Settings
from kfx.config.plugins import Plugin
from kfx.config.registry import GROUPS, SECTIONS
from kfx.experiment.config import Config, sources
from kfx.files import digest
from kfx.version import __version__

_ELSEWHERE = ("hydra", "resume", "retries", "checkpoint", "cluster", "figures", "report", "published", "smoke")
"""Keys that do not change what is computed: where, when and how often a run is done, and printed numbers."""


def content(raw: DictConfig) -> Settings:
    """The part of a config that determines the results."""
    masked = OmegaConf.masked_copy(raw, [str(key) for key in raw if key not in _ELSEWHERE])
    container = OmegaConf.to_container(masked, resolve=True)
    assert isinstance(container, dict)
    kept = {str(key): value for key, value in container.items()}
    kept["device"] = {k: v for k, v in kept["device"].items() if k not in ("threads", "precision_check")}
    kept["evaluation"] = {k: v for k, v in kept["evaluation"].items() if k not in ("memory", "store")}
    return kept


def identity(
    raw: DictConfig,
    config: Config,
    plugins: Sequence[Plugin],
    *,
    data: Mapping[str, str] | None = None,
    version: str = __version__,
    in_folds: bool = False,
) -> str:
    """Return sixteen hexadecimal digits from the config, the SHA-256 of data files and plugins, and versions.

    The versions are those of kfx and of the packages whose options were chosen. data, version: the checksums and the
    version of kfx that a record holds; by default those of here and now. in_folds: whether points that choose are left
    out in folds, for lack of memory.
    """
    own = content(raw)
    own["dataset"] = config.dataset.without_places(own["dataset"])
    for name in (*GROUPS, *SECTIONS):
        if name in own:
            implied = getattr(config, name).implied
            own[name] = {k: v for k, v in own[name].items() if k not in implied or v != implied[k]}
    if in_folds:
        own["evaluation"]["leave_one_out"] = "in folds"
    parts: list[object] = [own, data_checksums(config) if data is None else dict(data), version]
    by_plugins = {Path(plugin.path).name for plugin in plugins}
    packages = sorted(set(sources(config).values()) - by_plugins)
    outside = sorted(plugin.sha256 for plugin in plugins), packages
    if any(outside):
        parts.append(outside)
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def data_checksums(config: Config) -> dict[str, str]:
    """File name → SHA-256 of each file that the data set is read from; the files must exist."""
    if not (paths := config.dataset.paths()):
        return {}
    from kfx.data.files import require_file

    for path in paths:  # a pipe or a device has no end
        require_file(path)
    return checksums(paths)


def checksums(paths: list[Path]) -> dict[str, str]:
    """File name → SHA-256, with a number added to names that occur twice; an unchanged file is read once in a
    process."""
    found: dict[str, str] = {}
    for path in paths:
        name = path.name if path.name not in found else f"{path.name} ({len(found) + 1})"
        found[name] = _sha256(path, path.stat().st_mtime_ns, path.stat().st_size)
    return found


@lru_cache(maxsize=64)
def _sha256(path: Path, modified: int, size: int) -> str:
    return digest(path, "sha256")
