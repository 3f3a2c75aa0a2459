"""Threads: how many compute, and how they wait for each other.

By default OpenMP's idle threads spin for milliseconds; beside one busy core an iteration then takes up to 20 times as
long, for whoever has work waits for whoever spins. Threads that sleep at once cost up to an iteration's time when
nothing else runs. The command sets GOMP_SPINCOUNT=1000, about 20 µs, unless the environment says something.
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
from typing import TypeVar

import torch
from threadpoolctl import threadpool_limits

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
    return count if work >= _ENOUGH else 1


_ENOUGH = 6e7  # a batch of 390 points; measured on two cores, with and without a busy neighbour


def use(count: int, engine: int | None = None) -> None:
    """Compute with `count` threads of torch; `engine`: those of the compiled kernels, which have a pool of their own
    that does not spin, as many by default.

    NumPy's and SciPy's pools are left one thread each: they and torch's would hold each other up.
    """
    global _engine
    import scipy.linalg  # noqa: F401  # compiled loops take its BLAS, whose pool can be limited once it is there

    torch.set_num_threads(count)
    threadpool_limits(1, user_api="blas")
    _engine = engine or count
    _settle()


_turn = threading.RLock()


@contextmanager
def borrowed() -> Iterator[None]:
    """A block that sets threads, which belong to the process: one at a time, and afterwards they are as before."""
    with _turn, _restored():
        yield


@contextmanager
def _restored() -> Iterator[None]:
    global _engine
    before = torch.get_num_threads(), _engine
    with threadpool_limits(limits=None):
        try:
            yield
        finally:
            torch.set_num_threads(before[0])
            _engine = before[1]


def of_engine() -> int:
    """Threads of the compiled kernels."""
    return _engine or torch.get_num_threads()


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


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads
_here = threading.local()
_engine: int | None = None
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
