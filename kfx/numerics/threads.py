"""Threads: how many compute, and how they wait for each other.

By default OpenMP's idle threads spin for milliseconds; beside one busy core an iteration then takes up to 20 times as
long, for whoever has work waits for whoever spins. Threads that sleep at once cost up to an iteration's time when
nothing else runs. `import kfx` sets GOMP_SPINCOUNT=1000, about 20 µs, unless the environment says something or torch
is loaded already, which has read it then.
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
    """The cores that this process may use, or as many as OMP_NUM_THREADS says; ConfigError for nonsense there."""
    chosen = os.environ.get("OMP_NUM_THREADS")
    if not chosen:
        return len(os.sched_getaffinity(0))
    first = chosen.partition(",")[0].strip()
    if not first.isdecimal() or not 0 < int(first) <= 1024:
        raise ConfigError(f"OMP_NUM_THREADS={chosen}: expected a whole number from 1 to 1024; leave the variable out")
    return int(first)


def worth(count: int, work: float) -> int:
    """How many of `count` threads to use for steps of so many multiplications: one where waiting for each other would
    take what a second saves."""
    return count if work >= (_ENOUGH if _WAITS_SLEEP else _ENOUGH_SPINNING) else 1


_WAITS_SLEEP = "GOMP_SPINCOUNT" in os.environ or os.environ.get("OMP_WAIT_POLICY", "").lower() == "passive"
# Batches of 390 and of 1260 points: measured on two cores, with and without a busy neighbour.
_ENOUGH, _ENOUGH_SPINNING = 6e7, 2e9


def use(count: int, engine: int | None = None) -> None:
    """Compute with `count` threads of torch; `engine`: those of the compiled kernels, which have a pool of their own
    that does not spin, as many by default.

    NumPy's and SciPy's pools are left one thread each: they and torch's would hold each other up.
    """
    global _engine
    _set_torch(count)
    limit_blas()
    _engine = engine or count


def use_for(work: float, count: int) -> None:
    """Compute with as many of the caller's `count` threads of torch as the work is worth, until `use_again`."""
    _here.caller = count
    _set_torch(worth(count, work))


def use_again(count: int) -> None:
    """Give the calling thread back its `count` threads of torch."""
    _here.caller = None
    torch.set_num_threads(count)


@contextmanager
def as_many_as_worth(work: float) -> Iterator[None]:
    """Within the block torch uses one thread where so many multiplications are not worth more. Which library computes
    what stays as it is for the threads given by `use`, so that results keep their bits."""
    count = torch.get_num_threads()
    _here.given = count
    torch.set_num_threads(worth(count, work))
    try:
        yield
    finally:
        torch.set_num_threads(count)
        _here.given = None


def of_torch() -> int:
    """Threads that torch was given."""
    return getattr(_here, "given", None) or torch.get_num_threads()


def _set_torch(count: int) -> None:
    torch.set_num_threads(1 if _is_forked else count)  # OpenMP's threads of the parent are gone, and are waited for
    _settle()


@contextmanager
def restored() -> Iterator[None]:
    """After the block torch and the compiled kernels have the threads that they had before."""
    global _engine
    before = torch.get_num_threads(), _engine
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        _engine = before[1]


def of_blas() -> list[int]:
    """Threads of NumPy's and SciPy's BLAS."""
    return [library.get_num_threads() for library in _blas()]


def limit_blas() -> None:
    """Give NumPy's and SciPy's BLAS one thread each."""
    release_blas([1] * len(_blas()))


def release_blas(counts: Sequence[int]) -> None:
    """Give each BLAS so many threads, in the order of `of_blas`."""
    _let_any_thread_set()
    for library, count in zip(_blas(), counts, strict=True):
        library.set_num_threads(count)
    _let_any_thread_set()


def _let_any_thread_set() -> None:
    """Clear the claim of the Python thread that limited OpenBLAS first: of other threads' limits threadpoolctl makes
    nothing, without a word, from version 3.7 on."""
    from threadpoolctl import OpenBLASController

    if clear := getattr(OpenBLASController, "clear_controlling_thread", None):
        clear(force=True)


class _Library(Protocol):
    """A BLAS as threadpoolctl shows it."""

    def get_num_threads(self) -> int: ...

    def set_num_threads(self, num_threads: int) -> None: ...


@lru_cache(maxsize=1)
def _blas() -> list[_Library]:
    """The libraries that NumPy and SciPy compute with; to look for them takes milliseconds."""
    import scipy.linalg  # noqa: F401  # compiled loops call its BLAS, whose pool can be limited once it is there
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas").lib_controllers


def of_engine() -> int:
    """Threads of the compiled kernels."""
    return _engine or getattr(_here, "caller", None) or torch.get_num_threads()


def in_order(work: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[T, R]]:
    """Each item and what `work`, which lets go of the interpreter, makes of it, on `of_engine()` threads, in the items'
    order: sums of the results have the same bits however many there are. The caller's thread is one of them."""
    count = of_engine()
    if min(count, len(items)) <= 1 or getattr(_here, "of_pool", False):  # within a thread of the pool, in that one
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
        wait([future for _, future in begun if not future.cancel()])  # what runs reads and writes the caller's arrays


def _help(work: Callable[[T], R], begun: deque[tuple[T, Future[R]]]) -> None:
    """Do what no thread of the pool has taken up, until the first item is done."""
    for k, (item, future) in enumerate(begun):
        if begun[0][1].done():
            return
        if future.cancel():
            own: Future[R] = Future()
            begun[k] = item, own
            try:
                own.set_result(work(item))
            except Exception as error:  # raised when its turn comes, as a thread's would be
                own.set_exception(error)


@lru_cache(maxsize=1)
def _pool(count: int) -> ThreadPoolExecutor:
    """Threads that stay: to start two takes as long as a Gram matrix of a hundred points."""
    return ThreadPoolExecutor(count, "kfx", initializer=_mark)


def _mark() -> None:
    _here.of_pool = True


def _begin_anew() -> None:
    """In a forked child, which has none of its parent's threads."""
    global _is_forked
    _is_forked = True
    _pool.cache_clear()


os.register_at_fork(after_in_child=_begin_anew)
_here = threading.local()
_engine: int | None = None
_is_forked = False
_settled = False


def _settle() -> None:
    """Call each function of MKL's vector library once, on one element: it chooses its code at the first call, and of
    threads that make that call together one may get a version of fewer digits (pytorch/pytorch#188792)."""
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
