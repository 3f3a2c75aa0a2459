"""What makes two runs the same run: what they compute, not where or how fast."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from kfx import __version__
from kfx.data.files import digest

_ELSEWHERE = ("hydra", "resume", "retries", "checkpoint", "figures", "published")
"""Keys that say where, when or how often, and a paper's number: none of them changes what is computed."""


def content(raw: DictConfig) -> dict[str, Any]:
    """The part of a config that determines the result."""
    masked = OmegaConf.masked_copy(raw, [str(key) for key in raw if key not in _ELSEWHERE])
    container = OmegaConf.to_container(masked, resolve=True)
    assert isinstance(container, dict)
    kept = {str(key): value for key, value in container.items()}
    kept["device"] = {k: v for k, v in kept["device"].items() if k not in ("threads", "precision_check")}
    return kept


def identity(raw: DictConfig, checksums: dict[str, str]) -> str:
    """Sixteen hexadecimal digits from the config, the data files' SHA-256 and kfx's version."""
    text = json.dumps([content(raw), checksums, __version__], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def checksums(paths: list[Path]) -> dict[str, str]:
    """File name → SHA-256; a file that has not changed is read once a process."""
    return {path.name: _sha256(path, path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


@lru_cache(maxsize=64)
def _sha256(path: Path, modified: int, size: int) -> str:
    return digest(path, "sha256")
