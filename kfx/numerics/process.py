"""Process-wide settings that change kfx's numbers or speed: the precision of products, and threads.

They belong to the caller. kfx computes under its own settings and restores the caller's afterwards.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from kfx.numerics import threads

# ---- precision


_MIXED = "mixed"
Value = bool | str | None


class _Setting(NamedTuple):
    """A setting of torch or JAX: functions that read and write it, and its values for full precision and for TF32."""

    read: Callable[[], Value]
    write: Callable[[Any], None]
    full: Value
    tf32: Value


def _unless_mixed(read: Callable[[], Value]) -> Callable[[], Value]:
    """Return a version of `read` that gives `_MIXED` where torch raises since its operations have different values."""

    def read_if_possible() -> Value:
        try:
            return read()
        except RuntimeError:
            return _MIXED

    return read_if_possible


def _write_variable(value: str | None) -> None:
    os.environ.pop(_JAX_VARIABLE, None)
    if value is not None:
        os.environ[_JAX_VARIABLE] = value


def _read_jax() -> str | None:
    jax = sys.modules.get("jax")
    return jax.config.jax_default_matmul_precision if jax else os.environ.get(_JAX_VARIABLE)


def _write_jax(value: str | None) -> None:
    if jax := sys.modules.get("jax"):
        jax.config.update(_JAX, value)


def _switch(place: str) -> _Setting:
    """The float32 precision of torch, `""`, of a backend, or of one of its operations, as `cudnn.conv`."""
    of: Any = attrgetter(place)(torch.backends) if place else torch.backends
    tf32 = "tf32" if place in ("cuda.matmul", "cudnn.conv", "cudnn.rnn") else "ieee"
    return _Setting(lambda: of.fp32_precision, lambda value: setattr(of, "fp32_precision", value), "ieee", tf32)


_JAX = "jax_default_matmul_precision"
_JAX_VARIABLE = "JAX_DEFAULT_MATMUL_PRECISION"  # read when JAX is first imported
_CUBLAS, _CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
_SETTINGS = {  # general settings of torch first, since they also set each operation's
    "torch.float32_matmul_precision": _Setting(
        _unless_mixed(torch.get_float32_matmul_precision), torch.set_float32_matmul_precision, "highest", "highest"
    ),
    "torch.backends.cuda.matmul.allow_tf32": _Setting(
        _unless_mixed(lambda: _CUBLAS.allow_tf32), lambda value: setattr(_CUBLAS, "allow_tf32", value), False, True
    ),
    "torch.backends.cudnn.allow_tf32": _Setting(
        _unless_mixed(lambda: _CUDNN.allow_tf32), lambda value: setattr(_CUDNN, "allow_tf32", value), False, True
    ),
    _JAX_VARIABLE: _Setting(lambda: os.environ.get(_JAX_VARIABLE), _write_variable, "highest", "default"),
    _JAX: _Setting(_read_jax, _write_jax, "highest", "default"),
}
if hasattr(torch.backends.mkldnn, "matmul"):  # torch >= 2.9; a setting comes before those that inherit from it
    for _place in (
        "", "cudnn", "mkldnn", "cuda.matmul", "cudnn.conv", "cudnn.rnn", "mkldnn.matmul", "mkldnn.conv", "mkldnn.rnn"
    ):  # fmt: skip
        _SETTINGS[".".join(filter(None, ("torch.backends", _place, "fp32_precision")))] = _switch(_place)


def set_switches(allow_tf32: bool) -> dict[str, Value]:
    """Set torch and JAX to full precision, or allow TF32 in products and convolutions on a GPU; return the settings.

    By default torch allows TF32 in cuDNN convolutions, and JAX in products on recent GPUs. On a CPU, products of
    float32 keep full precision in either case.
    """
    _write({name: setting.tf32 if allow_tf32 else setting.full for name, setting in _SETTINGS.items()})
    return {
        "torch.backends.cuda.matmul.allow_tf32": allow_tf32,
        "torch.backends.cudnn.allow_tf32": allow_tf32,
        _JAX: "default" if allow_tf32 else "highest",
    }


def found() -> dict[str, Value]:
    """Return the caller's settings that kfx has replaced and will restore, by name; empty outside of `computing`."""
    return {name: value for name, value in _before.items() if value is not None}


def _differs(value: Value, other: Value) -> bool:
    """Whether `value` must be replaced by `other`; "none" also means full precision, and `_MIXED` is not a value."""
    return value != other and (value, other) != ("none", "ieee") and _MIXED not in (value, other)


def _write(values: Mapping[str, Value]) -> None:
    for name, value in values.items():
        if _differs(_SETTINGS[name].read(), value):
            _SETTINGS[name].write(value)


# ---- blocks in which kfx computes


class computing:
    """A context manager that computes under kfx's own settings, and restores the caller's afterwards.

    The settings are full precision, and one thread for BLAS, which kfx's own threads call. Blocks of several Python
    threads may overlap; the last to end restores the settings. A block inside another of the same thread sets nothing.

    work: approximate number of multiplications in the block; it decides whether torch gets one thread or all of the
    caller's, see `threads.worth`.
    """

    __slots__ = ("_autocast", "_generation", "_is_outer", "_threads", "work")

    def __init__(self, work: float = 0.0) -> None:
        self.work = work

    def __enter__(self) -> computing:
        global _users
        depth = getattr(_here, "depth", 0)
        self._is_outer = depth == 0
        if self._is_outer:
            self._generation, self._autocast, is_counted = _generation, [], False
            try:
                with _lock:
                    self._threads = _threads_of_caller()
                    if _users == 0:
                        _take_over()
                    _users += 1
                    is_counted = True
                threads.use_for(self.work, self._threads)
                for device in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
                    self._autocast.append(torch.autocast(device, enabled=False))
                    self._autocast[-1].__enter__()
            except BaseException:  # includes Ctrl-C
                if is_counted:
                    self._leave()
                raise
        _here.depth = depth + 1
        return self

    def __exit__(self, *raised: object) -> None:
        _here.depth -= 1
        if self._is_outer:
            self._leave()

    def _leave(self) -> None:
        global _users
        try:
            for each in self._autocast:
                each.__exit__(None, None, None)
            threads.use_again(self._threads)
        finally:
            with _lock:
                if self._generation == _generation:  # not in a child forked inside the block
                    _users -= 1
                    _here.is_known = True
                    if _users == 0:
                        _give_back()


@contextmanager
def exclusively(count: int | None = None, engine: int | None = None, *, allow_tf32: bool = False) -> Iterator[None]:
    """A block like `computing` with chosen threads and precision, for a fit or a run; one such block runs at a time.

    count, engine: as for `threads.use`; None leaves the threads unchanged. allow_tf32: as for `set_switches`.
    """
    with _turn, computing(), threads.restored():
        before = {name: setting.read() for name, setting in _SETTINGS.items()}
        set_switches(allow_tf32)
        if count is not None:
            threads.use(count, engine)
        try:
            yield
        finally:
            _write(before)


def keep() -> None:
    """Keep kfx's settings for the rest of the process, for a worker process that runs nothing else."""
    computing().__enter__()


_turn = threading.RLock()
_lock = threading.Lock()
_here = threading.local()
_users, _generation = 0, 0
_before: dict[str, Value] = {}
_blas_before: list[int] = []
_threads_before = 1


def _threads_of_caller() -> int:
    """The number of torch threads that the calling thread had before kfx. A thread started inside another thread's
    block would report the single thread that kfx had set there."""
    count = torch.get_num_threads()
    return _threads_before if _users and count == 1 and not hasattr(_here, "is_known") else count


def _take_over() -> None:
    global _before, _blas_before, _threads_before
    found = {name: setting.read() for name, setting in _SETTINGS.items()}
    _before = {name: value for name, value in found.items() if _differs(value, _SETTINGS[name].full)}
    _blas_before, _threads_before = threads.of_blas(), torch.get_num_threads()
    try:
        threads.limit_blas()
        _write({name: _SETTINGS[name].full for name in _before})
    except BaseException:  # includes Ctrl-C
        _give_back()
        raise


def _give_back() -> None:
    global _before
    try:
        _write(_before)
        threads.release_blas(_blas_before)
    except BaseException:
        _write(_before)
        threads.release_blas(_blas_before)
        raise
    _before = {}


def _begin_anew() -> None:
    """In a forked child, renew the locks and restore the settings that another thread of the parent had replaced."""
    global _turn, _lock, _users, _generation
    _turn, _lock = threading.RLock(), threading.Lock()
    _generation += 1
    if _users and not getattr(_here, "depth", 0):
        _give_back()
    _users = 0


os.register_at_fork(after_in_child=_begin_anew)
