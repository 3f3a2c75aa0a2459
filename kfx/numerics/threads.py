"""Threads: how many compute, and how they wait for each other.

By default OpenMP's idle threads spin for milliseconds. With one core busy elsewhere, an iteration then takes up to 20
times as long, since threads with work wait for cores on which others spin. Threads that sleep at once cost up to an
iteration's time when nothing else runs. `import kfx` sets GOMP_SPINCOUNT=1000, about 20 µs, unless the environment
sets a waiting policy or torch, which reads the variable when it is loaded, is loaded already.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from typing import Protocol, TypeVar

import torch

from kfx.outcomes import ConfigError

T = TypeVar("T")
R = TypeVar("R")


def available() -> int:
    """Return OMP_NUM_THREADS where it is set, else the number of cores that this process may use.

    Raises ConfigError where OMP_NUM_THREADS is not a whole number from 1 to 1024.
    """
    chosen = os.environ.get("OMP_NUM_THREADS")
    if not chosen:
        return len(os.sched_getaffinity(0))
    first = chosen.partition(",")[0].strip()
    if not first.isdecimal() or not 0 < int(first) <= 1024:
        raise ConfigError(f"OMP_NUM_THREADS={chosen}: expected a whole number from 1 to 1024; leave the variable out")
    return int(first)


def worth(count: int, work: float) -> int:
    """Return `count`, or 1 where synchronising threads would cost as much as they save.

    work: multiplications in a step.
    """
    return count if work >= (_ENOUGH if _WAITS_SLEEP else _ENOUGH_SPINNING) else 1


_WAITS_SLEEP = "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
# Batches of 390 and of 1260 points: measured on two cores, with and without a busy neighbour.
_ENOUGH, _ENOUGH_SPINNING = 6e7, 2e9


def use(count: int, engine: int | None = None) -> None:
    """Set the number of torch's threads to `count`, and those of the compiled kernels to `engine`, `count` by default.

    Compiled kernels have their own pool, which does not spin. NumPy's and SciPy's pools get one thread each, since
    they and torch's would block each other.
    """
    global _engine
    _set_torch(count)
    limit_blas()
    _engine = engine or count


def use_for(work: float, count: int) -> None:
    """Give torch one or all of the caller's `count` threads, see `worth`, until `use_again`."""
    _here.caller = count
    _set_torch(worth(count, work))


def use_again(count: int) -> None:
    """Restore torch's `count` threads for the calling thread."""
    _here.caller = None
    torch.set_num_threads(count)


@contextmanager
def as_many_as_worth(work: float) -> Iterator[None]:
    """Give torch one thread inside the block where `work` multiplications are not worth more; see `worth`.

    `of_torch` still returns the number set by `use`, so that the same libraries compute and results are bitwise equal.
    """
    count = torch.get_num_threads()
    _here.given = count
    torch.set_num_threads(worth(count, work))
    try:
        yield
    finally:
        torch.set_num_threads(count)
        _here.given = None


def of_torch() -> int:
    """Return the number of threads given to torch."""
    return getattr(_here, "given", None) or torch.get_num_threads()


def _set_torch(count: int) -> None:
    torch.set_num_threads(1 if _is_forked else count)  # OpenMP would wait for the parent's threads
    _settle()


@contextmanager
def restored() -> Iterator[None]:
    """Restore the numbers of threads of torch and of the compiled kernels after the block."""
    global _engine
    before = torch.get_num_threads(), _engine
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _engine = before[1]


def of_blas() -> list[int]:
    """Return the number of threads of each BLAS that NumPy and SciPy use."""
    return [library.get_num_threads() for library in _blas()]


def limit_blas() -> None:
    """Give each BLAS of NumPy and SciPy one thread."""
    release_blas([1] * len(_blas()))


def release_blas(counts: Sequence[int]) -> None:
    """Set the number of threads of each BLAS, in the order of `of_blas`."""
    _let_any_thread_set()
    for library, count in zip(_blas(), counts, strict=True):
        library.set_num_threads(count)
    _let_any_thread_set()


def _let_any_thread_set() -> None:
    """Let any Python thread limit OpenBLAS: from version 3.7, threadpoolctl silently ignores limits set by threads
    other than the first that set one."""
    from threadpoolctl import OpenBLASController

    if clear := getattr(OpenBLASController, "clear_controlling_thread", None):
        clear(force=True)


class _Library(Protocol):
    """A BLAS library as threadpoolctl describes it."""

    def get_num_threads(self) -> int: ...

    def set_num_threads(self, num_threads: int) -> None: ...


@lru_cache(maxsize=1)
def _blas() -> list[_Library]:
    """The BLAS libraries that NumPy and SciPy use, cached: finding them takes milliseconds."""
    import scipy.linalg  # noqa: F401  # loads the BLAS that compiled loops call, so that it can be limited
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas").lib_controllers


def of_engine() -> int:
    """Return the number of threads of the compiled kernels."""
    return _engine or getattr(_here, "caller", None) or torch.get_num_threads()


def in_order(work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Yield each item with work(item), in the items' order, computed on `of_engine()` threads.

    Because of the order, sums of the results are bitwise equal for any number of threads. `work` releases the GIL.
    The caller's thread is one of the threads.
    """
    count = of_engine()
    if min(count, len(items)) <= 1 or getattr(_here, "of_pool", False):  # a thread of the pool does its own items
        for item in items:
            yield item, work(item)
        return
    pool = _pool(count - 1)
    begun: deque[tuple[T, Future[R]]] = deque()
    left = iter(items)
    try:
        begun.extend((item, pool.submit(work, item)) for item in islice(left, 2 * count))
        while begun:
            if not begun[0][1].done():
                _help(work, begun)
            item, future = begun.popleft()
            yield item, future.result()
            begun.extend((item, pool.submit(work, item)) for item in islice(left, 1))
    finally:
        wait([future for _, future in begun if not future.cancel()])  # running items use the caller's arrays


def _help(work: Callable[[T], R], begun: deque[tuple[T, Future[R]]]) -> None:
    """Do items that no thread of the pool has started, until the first item is done."""
    for k, (item, future) in enumerate(begun):
        if begun[0][1].done():
            return
        if future.cancel():
            own: Future[R] = Future()
            begun[k] = item, own
            try:
                own.set_result(work(item))
            except Exception as error:  # raised in the items' order, like an error in the pool
                own.set_exception(error)


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    """A lasting pool: starting two threads takes as long as a Gram matrix of a hundred points."""
    return ThreadPoolExecutor(count, "kfx", initializer=_mark)


def _mark() -> None:
    _here.of_pool = True


def _begin_anew() -> None:
    """Forget the pool in a forked child, which has none of its parent's threads."""
    global _is_forked
    _is_forked = True
    _pool.cache_clear()


os.register_at_fork(after_in_child=_begin_anew)
_here = threading.local()
_engine: int | None = None
_is_forked = False
_settled = False


def _settle() -> None:
    """Call each function of MKL's vector library once, on one element. MKL selects its code at the first call; if
    several threads make that call together, one may get a less accurate version (pytorch/pytorch#188792)."""
    global _settled
    if _settled:
        return
    for dtype in (torch.float32, torch.float64):
        one = torch.full((1,), 0.5, dtype=dtype)
        for function in (torch.exp, torch.log, torch.sqrt, torch.rsqrt, torch.acos, torch.atan, torch.tanh, torch.erf):
            function(one)
        torch.pow(one, 0.3)
        torch.atan2(one, one)
    _settled = True
