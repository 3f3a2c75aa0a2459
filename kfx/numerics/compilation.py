"""Compile loops to machine code with numba, and keep the code on disk until a source file changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

# "contract" allows fused multiply-adds alone: sums keep their order, and NaN stays NaN.
_OPTIONS: dict[str, object] = {"fastmath": {"contract"}, "error_model": "numpy", "nogil": True}
_SUMMING: dict[str, object] = {**_OPTIONS, "fastmath": {"contract", "reassoc"}}
# The linker takes any copy of a function that is called, and copies round as the code around them was compiled: it took
# another one in the process that compiles than in those that load what that one kept.
_WITHIN: dict[str, object] = {"forceinline": True}


def inner(function: F) -> F:
    """Compile a function that compiled functions call."""
    return njit(**_OPTIONS, **_WITHIN)(_named(function))


def on_views(function: F) -> F:
    """Compile as `inner` does a function that makes no arrays: slices are not counted, which is atomic and would cost
    more than a loop over a short slice."""
    return njit(**_OPTIONS, **_WITHIN, _nrt=False)(_named(function))


def summing(function: F) -> F:
    """Compile as `inner` does, and let sums change their order, so that they use whole vector registers."""
    return njit(**_SUMMING, **_WITHIN)(_named(function))


def _named(function: F) -> F:
    """Name a function that is made for each of several others after those that it calls.

    Numba tells functions of one name apart by a count in the process. Code that several processes kept would hold
    different functions by one name and count, and the linker would take any of them.
    """
    for cell in function.__closure__ or ():
        function.__qualname__ += f"_{cell.cell_contents.__name__}"
    return function


def entry(function: Callable[..., R]) -> Callable[..., R]:
    """Compile a function that Python calls: it releases the interpreter lock, and its code is kept on disk."""
    return _kept(function, _OPTIONS)


def summing_entry(function: Callable[..., R]) -> Callable[..., R]:
    """Compile as `entry` does, and let sums in the function itself change their order."""
    return _kept(function, _SUMMING)


def _kept(function: Callable[..., R], options: dict[str, object]) -> Callable[..., R]:
    compiled = njit(**options, cache=True)(function)
    # numba compares the age of kept code with the function's own file alone; the files of its callees count too.
    changed = max(Path(str(sys.modules[name].__file__)).stat().st_mtime for name in _sources(function.__module__))
    kept = Path(compiled.stats.cache_path)
    for index in kept.glob(f"*.{function.__qualname__}-{function.__code__.co_firstlineno}.*.nbi"):
        with suppress(OSError):
            if index.stat().st_mtime < changed:
                index.unlink()
    return compiled


def _sources(module: str) -> set[str]:
    """Return this module, the given one, and the modules of kfx from which they import, directly or not."""
    found, left = {__name__}, [module]
    while left:
        name = left.pop()
        if name not in found and name in sys.modules:
            found.add(name)
            origins = {getattr(value, "__module__", None) for value in vars(sys.modules[name]).values()}
            left += [origin for origin in origins if isinstance(origin, str) and origin.startswith("kfx.")]
    return found
