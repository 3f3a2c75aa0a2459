"""How loops are compiled, and when a compilation that was kept is used again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit

# Contraction to fused multiply-adds alone: sums keep their order, and what is not a number stays so.
_OPTIONS: dict[str, Any] = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
_SUMMING: dict[str, Any] = {**_OPTIONS, "fastmath": {"contract", "reassoc"}}

inner = njit(**_OPTIONS)
"""A loop inside others."""
summing = njit(**_SUMMING)
"""One whose sums may change their order, so that they take whole registers."""


def entry(function: Callable[..., Any]) -> Any:
    """A function that Python calls: let go of the interpreter, kept compiled on disk."""
    return _kept(function, _OPTIONS)


def summing_entry(function: Callable[..., Any]) -> Any:
    """`entry`, whose own sums may change their order."""
    return _kept(function, _SUMMING)


_CHANGED = max(path.stat().st_mtime for path in Path(__file__).parent.glob("*.py"))


def _kept(function: Callable[..., Any], options: dict[str, Any]) -> Any:
    compiled = njit(**options, cache=True)(function)
    # A compilation that is kept is dated by the function's own file; what it calls from this folder may be newer.
    kept = Path(compiled.stats.cache_path)
    for index in kept.glob(f"*.{function.__qualname__}-{function.__code__.co_firstlineno}.*.nbi"):
        with suppress(OSError):
            if index.stat().st_mtime < _CHANGED:
                index.unlink()
    return compiled
