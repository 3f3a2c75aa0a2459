"""How loops are compiled, and when a compilation that was kept is used again."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from numba import njit

# Contraction to fused multiply-adds alone: sums keep their order, and what is not a number stays so.
R = TypeVar("R")

_OPTIONS: dict[str, object] = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
_SUMMING: dict[str, object] = {**_OPTIONS, "fastmath": {"contract", "reassoc"}}

inner = njit(**_OPTIONS)
"""A loop inside others."""
summing = njit(**_SUMMING)
"""One whose sums may change their order, so that they take whole registers."""


def entry(function: Callable[..., R]) -> Callable[..., R]:
    """Compile a function that Python calls: it lets go of the interpreter, and its code is kept on disk."""
    return _kept(function, _OPTIONS)


def summing_entry(function: Callable[..., R]) -> Callable[..., R]:
    """Compile as `entry` does, and let the function's own sums change their order."""
    return _kept(function, _SUMMING)


def _kept(function: Callable[..., R], options: dict[str, object]) -> Callable[..., R]:
    compiled = njit(**options, cache=True)(function)
    # A compilation that is kept is dated by the function's own file; what it calls from others may be newer.
    changed = max(Path(str(sys.modules[name].__file__)).stat().st_mtime for name in _sources(function.__module__))
    kept = Path(compiled.stats.cache_path)
    for index in kept.glob(f"*.{function.__qualname__}-{function.__code__.co_firstlineno}.*.nbi"):
        with suppress(OSError):
            if index.stat().st_mtime < changed:
                index.unlink()
    return compiled


def _sources(module: str) -> set[str]:
    """A module, this one, and those of kfx that it has functions from, and they in turn."""
    found, left = {__name__}, [module]
    while left:
        name = left.pop()
        if name not in found and name in sys.modules:
            found.add(name)
            origins = {getattr(value, "__module__", None) for value in vars(sys.modules[name]).values()}
            left += [origin for origin in origins if isinstance(origin, str) and origin.startswith("kfx.")]
    return found
