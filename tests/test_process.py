"""kfx computes under its own precision and threads, and puts back those of whoever runs the process."""

from __future__ import annotations

import ast
import importlib.util
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from threadpoolctl import threadpool_info, threadpool_limits

import kfx.torch
from kfx import KernelFlowRegressor, KernelFlowTransformer
from kfx.estimators import settings
from kfx.kernels import RBF, Laplace, Matern, RationalQuadratic
from kfx.kernels.formula import Formula
from kfx.numerics import process
from kfx.objectives import nll, rho
from kfx.objectives.autograd import by_autograd
from tests.slow import one_in

X = np.random.default_rng(0).standard_normal((30, 3))
Y = X[:, 0] ** 2


def settings_of_torch():
    """What decides how torch multiplies, as whoever runs the process sees it."""
    try:
        whole = torch.get_float32_matmul_precision()
    except RuntimeError:
        whole = "mixed"
    blas = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    return whole, torch.backends.cudnn.allow_tf32, torch.get_num_threads(), os.environ.get(process._JAX_VARIABLE), blas


@pytest.fixture(params=["highest", "medium", "autocast"])
def changed(request):
    """A process whose owner lets torch multiply in shorter numbers, on two threads."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("highest" if request.param == "autocast" else request.param)
    torch.set_num_threads(2)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=request.param == "autocast"), threadpool_limits(2):
        yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


class Watched(Formula):
    """A Gaussian kernel that notes under what its products are computed."""

    def __init__(self, seen):
        super().__init__(self.product, {"sigma": 1.0})
        self.seen = seen

    def product(self, x, y, sigma):
        precision = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        self.seen.append((*precision, torch.is_autocast_enabled("cpu"), settings_of_torch()[-1]))
        return torch.exp(-((x[:, None] - y[None]) ** 2).sum(-1) / (2 * sigma**2))


def entries(kernel):
    """Every way from outside to a kernel's arithmetic."""
    x, theta = torch.as_tensor(X), torch.as_tensor(RBF(1.0).gram(X))

    @by_autograd
    def watching(a, y, sample_size):
        kernel.product(a, a, torch.tensor(1.0))
        return a.square().sum()

    def fitted():
        return KernelFlowRegressor(kernel, optimizer={"name": "adam", "iterations": 2})

    yield "gram", lambda: kernel.gram(X)
    yield "cross", lambda: kernel.gram(X, X[:3])
    yield "diagonal", lambda: kernel.diagonal(X)
    yield "pullback", lambda: kernel.pullback(X)[1](np.eye(30), inputs=True)
    yield "torch", lambda: kfx.torch.gram(kernel, x.clone().requires_grad_()).sum().backward()
    yield "module", lambda: kfx.torch.KernelModule(kernel)(x).sum().backward()
    yield "objective", lambda: watching(theta, Y, 10)
    yield "fit and predict", lambda: fitted().fit(X, Y).predict(X[:2], return_std=True)


@pytest.mark.parametrize("entry", one_in(2, [name for name, _ in entries(Watched([]))]))
def test_products_are_in_full_precision_whatever_the_process_is_set_to(changed, entry):
    seen, before = [], settings_of_torch()
    dict(entries(Watched(seen)))[entry]()
    assert seen
    for precision, tf32, autocast, blas in seen:
        assert (precision, tf32, autocast, set(blas)) == ("highest", False, False, {1})
    assert settings_of_torch() == before


def test_a_fit_in_float32_gives_the_same_bits_under_any_setting(changed):
    def predictions():
        estimator = KernelFlowRegressor("matern", optimizer={"iterations": 3}, device={"dtype": "float32"})
        return estimator.fit(X, Y).predict(X)

    found = predictions()
    torch.set_float32_matmul_precision("highest")
    with torch.autocast("cpu", enabled=False):
        assert np.array_equal(found, predictions())


def test_a_run_records_what_it_found(kfx, in_folder):
    words = ["optimizer.iterations=2", "device.precision_check=off", "figures=false"]
    torch.set_float32_matmul_precision("medium")
    try:
        assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
    assert '"torch.float32_matmul_precision": "medium"' in (in_folder / "r/environment.json").read_text()


def test_a_switch_of_one_operation_is_put_back_too():
    if not hasattr(torch.backends.mkldnn, "matmul"):
        pytest.skip("torch has no switches of operations")
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    try:
        with process.computing():
            assert torch.backends.mkldnn.matmul.fp32_precision == "ieee"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.slow
def test_switches_that_follow_another_still_follow_it():
    if not hasattr(torch.backends.mkldnn, "matmul"):
        pytest.skip("torch has no switches of operations")
    code = (  # in a process where nobody has set one by itself
        "import numpy as np, torch; from kfx.kernels import RBF; torch.backends.fp32_precision = 'bf16';"
        "RBF(1.0).gram(np.ones((3, 2), np.float32)); assert torch.backends.mkldnn.matmul.fp32_precision == 'bf16';"
        "torch.backends.fp32_precision = 'ieee'; assert torch.backends.mkldnn.matmul.fp32_precision == 'ieee';"
        "assert torch.get_float32_matmul_precision() == 'highest'"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_threads_that_begin_within_anothers_block_leave_torchs_count():
    torch.set_num_threads(2)
    counts, entered, leave = [], threading.Event(), threading.Event()

    def first():
        with process.computing():
            entered.set()
            leave.wait(10)

    def second():
        RBF(1.0).gram(X)
        counts.append(torch.get_num_threads())

    threads = [threading.Thread(target=first), threading.Thread(target=second)]
    threads[0].start()
    entered.wait(10)
    threads[1].start()
    threads[1].join()
    leave.set()
    threads[0].join()
    last = threading.Thread(target=lambda: counts.append(torch.get_num_threads()))
    last.start()
    last.join()
    assert counts == [2, 2]


def test_the_last_of_overlapping_blocks_puts_the_settings_back():
    with threadpool_limits(2):
        before = settings_of_torch()
        entered, leave = threading.Event(), threading.Event()

        def other():
            with process.computing():
                entered.set()
                leave.wait(10)

        thread = threading.Thread(target=other)
        with process.computing():
            thread.start()
            entered.wait(10)
        assert settings_of_torch()[-1] == [1] * len(before[-1])  # the other one still computes
        leave.set()
        thread.join()
        assert settings_of_torch() == before


FORKED = """
import os, signal, threading, time
import numpy as np, torch
from kfx import KernelFlowRegressor
from kfx.numerics import process
x = np.random.default_rng(0).standard_normal((450, 3))
(torch.ones(900, 900) @ torch.ones(900, 900)).exp()  # torch's threads are there, in the parent
def fit(iterations):
    return KernelFlowRegressor(optimizer={"name": "adam", "iterations": iterations}).fit(x, x[:, 0]).predict(x[:1])
expected = fit(3)
before = torch.get_float32_matmul_precision(), torch.get_num_threads()
thread = threading.Thread(target=fit, args=(3000,), daemon=True)
thread.start()
while not process._users:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(50)
    assert np.allclose(fit(3), expected, rtol=1e-9)
    assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
os._exit(0)  # the thread goes on, and the interpreter's end would not wait for its arithmetic
"""


@pytest.mark.slow
def test_a_child_that_is_forked_during_a_fit_fits_too():
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORKED], check=True, timeout=120)


# ---- what it costs


def median(call, repeats=60):
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


@pytest.mark.slow
def test_a_row_is_predicted_as_fast_as_by_kernel_ridge():
    x = np.random.default_rng(0).standard_normal((940, 20))
    flow = KernelFlowRegressor(optimizer={"name": "adam", "iterations": 2}).fit(x, x[:, 0])
    ridge = KernelRidge(kernel="rbf").fit(x, x[:, 0])
    row = x[:1]
    flow.predict(row, return_std=True)
    ways = [lambda: ridge.predict(row), lambda: flow.predict(row), lambda: flow.predict(row, return_std=True)]
    rounds = [[median(way) for way in ways] for _ in range(5)]
    ratios = [[each / ridges for each in rest] for ridges, *rest in rounds]
    assert min(one for one, _ in ratios) < 2
    assert min(two for _, two in ratios) < 5


def test_a_setting_is_composed_once_a_process():
    def fit(sigma):
        return KernelFlowRegressor({"name": "rbf", "sigma": sigma}, optimizer={"name": "adam", "iterations": 1})

    composed = settings._typed_once.cache_info
    fit(1.1).fit(X, Y)
    before = composed().misses
    fit(1.1).fit(X, Y)
    assert composed().misses == before
    fit(1.2).fit(X, Y)
    assert composed().misses > before
    changed = fit(1.1).set_params(optimizer__iterations=2, random_state=5).fit(X, Y)
    assert (len(changed.trace_), changed.kernel_.parameters == fit(1.1).fit(X, Y).kernel_.parameters) == (2, False)


_MEMORY_IN_USE = """
import ctypes, gc, sys
import numpy as np
from kfx import KernelFlowRegressor

counts = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()
Heap = type("Heap", (ctypes.Structure,), {"_fields_": [(name, ctypes.c_size_t) for name in counts]})
heap = ctypes.CDLL(None).mallinfo2
heap.restype = Heap
x = np.random.default_rng(0).standard_normal((60, 3))

def in_use(fits):
    for _ in range(fits):
        KernelFlowRegressor(optimizer={"name": "adam", "iterations": 2}).fit(x, x[:, 0])
    gc.collect()
    return np.array([heap().uordblks + heap().hblkhd, sys.getallocatedblocks()])

before = in_use(60)
print(*(in_use(100) - before))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc says how much memory is in use")
def test_fits_give_their_memory_back():
    # What is in use, not what is resident: the heap's gaps grow and shrink with the machine's load.
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _MEMORY_IN_USE], capture_output=True, check=True, timeout=120
    )
    heap_bytes, python_blocks = map(int, said.stdout.split())
    assert heap_bytes < 100 * 1024, heap_bytes  # a kilobyte a fit
    assert python_blocks < 100, python_blocks  # an object a fit


# ---- an estimator is whole


@pytest.mark.parametrize("make", [KernelFlowRegressor, KernelFlowTransformer])
def test_an_interrupted_refit_leaves_the_estimator_as_it_was(monkeypatch, make):
    steps = {"name": "adam" if make is KernelFlowRegressor else "flow_euler", "iterations": 3}
    estimator = make(optimizer=steps).fit(X, Y)
    answer = estimator.predict if make is KernelFlowRegressor else estimator.transform
    before, attributes = answer(X), dict(vars(estimator))

    class Stopping(RBF):
        def _pullback(self, x):
            raise KeyboardInterrupt

    estimator.kernel = Stopping()
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(X[:, :2], Y)
    estimator.kernel = attributes["kernel"]
    assert vars(estimator).keys() == attributes.keys()
    assert np.array_equal(answer(X), before)


# ---- input that cannot be


def test_gram_matrices_that_are_none():
    x = torch.as_tensor(X)
    theta = torch.as_tensor(RBF(1.0).gram(X))
    skewed = theta.clone()
    skewed[3, 2] += 0.1
    for objective in (rho, nll):
        with pytest.raises(ValueError, match=r"symmetric matrix.*0\.1"):
            objective(skewed.numpy(), Y, 10)
    with pytest.raises(ValueError, match=r"symmetric matrix.*0\.1"):
        kfx.torch.rho_loss(skewed, torch.as_tensor(Y), 10)
    for call in (lambda: rho(theta, Y, True), lambda: kfx.torch.rho_loss(theta, torch.as_tensor(Y), True)):
        with pytest.raises(ValueError, match="sample_size=True"):
            call()
    with pytest.raises(ValueError, match="complex"):
        kfx.torch.gram(RBF(1.0), x.to(torch.complex128))
    with pytest.raises(ValueError, match="complex"):
        RBF(1.0).gram(X.astype(complex))
    with pytest.raises(ValueError, match="complex"):
        kfx.torch.rho_loss(theta.to(torch.complex128), torch.as_tensor(Y), 10)
    with pytest.raises(ValueError, match="at least one point"):
        kfx.torch.gram(RBF(1.0), x[:0])


@pytest.mark.parametrize("kernel", [RBF(1.5), Laplace(1.5), RationalQuadratic(), Matern(1.5)])
def test_a_gram_matrix_may_be_scaled_in_place(kernel):
    def gradient(scaled):
        x = torch.as_tensor(X).clone().requires_grad_()
        scaled(kfx.torch.gram(kernel, x)).square().sum().backward()
        return x.grad

    assert torch.equal(gradient(lambda gram: gram.mul_(2.0)), gradient(lambda gram: gram * 2.0))


@pytest.mark.parametrize(
    ("way", "what"), [("gram", "points"), ("gram", "parameters"), ("module", "points"), ("gpytorch", "points")]
)
def test_what_is_changed_in_place_before_the_backward_pass_is_refused(way, what):
    pytest.importorskip("gpytorch")
    from kfx.gpytorch import KfxKernel

    x = torch.as_tensor(X).clone().requires_grad_()
    flat = torch.tensor([1.0], dtype=torch.float64, requires_grad=True)
    if way == "gram":
        value = kfx.torch.gram(RBF(1.0), x, parameters=flat).square().sum()
    elif way == "module":
        value = kfx.torch.KernelModule(RBF(1.0))(x).square().sum()
    else:
        value = KfxKernel(RBF(1.0))(x).to_dense().square().sum()
    with torch.no_grad():
        (x if what == "points" else flat).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


SCRIPTS = sorted((Path(__file__).parent.parent / "scripts").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_names_that_scripts_import_from_the_package_are_there(script):
    if script.name in ("bench_cnngp.py", "bench_nngp.py"):
        pytest.importorskip("neural_tangents")
    missing = [
        f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(script.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kfx")
        for alias in node.names
        if not hasattr(module := importlib.import_module(node.module), alias.name)
        and not (hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{alias.name}"))
    ]
    assert not missing
