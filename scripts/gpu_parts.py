"""What `check_gpu.py` measures: a function for each part, which yields names and numbers as they come."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-5
"""The largest error of a Gram matrix or a gradient in float32, relative to its largest entry."""
Numbers = dict[str, float | str]


_SMALL = ("kernel.architecture=small", "sampler.batch_size=20", "sampler.padding=1")
_SIZES = {  # on a GPU, and with --cpu
    "device": ("cuda", "cpu"),
    "products": (range(100, 1001, 100), (100,)),  # rows of the matrices of the precision check
    "network": ("convnet", "simple"),  # of a CNNGP, on images of so many pixels on a side
    "side": (28, 6),
    "images": (600, 4),
    "few": (120, 3),  # of these images, on which cnn-gp's recursion keeps every map
    "large": (8192, 256),  # rows of the matrices whose product gives the rate of multiply-adds
    "points": (4096, 60),
    "pooled": (32, 4),  # images of the CNTK
    "batch": (1200, 20),
    "flowing": (60_000, 600),
    "deep": (("kernel.inducing=[64,128,256]", "optimizer.iterations=25"),
             ("kernel.inducing=[4,5,6]", "optimizer.iterations=5", *_SMALL)),
    "deep_side": (32, 8),
    "killed": ("cnngp", "rbf"),
    "rows": (400, 1000),  # of its trace
}  # fmt: skip
Size = SimpleNamespace
GPU, CPU = (Size(**dict(zip(_SIZES, values, strict=True))) for values in zip(*_SIZES.values(), strict=True))


def card(size: Size) -> Iterator[Numbers]:
    """The GPU and the software."""
    import torch

    from kfx import __version__
    from kfx.record.environment import software

    name = torch.cuda.get_device_name() if size.device == "cuda" else "cpu"
    yield {"card": name, "date": datetime.now(UTC).date().isoformat(), "kfx": __version__}
    yield software()["packages"] | ({"cuda": str(torch.version.cuda)} if size.device == "cuda" else {})


def precision(size: Size) -> Iterator[Numbers]:
    """The largest relative error of products of random matrices and of a convolution, against float64 on the CPU, with
    TF32 forbidden and allowed (Khalid 2022, section 3.3). Forbidden, each dtype must deliver its precision."""
    from kfx.numerics import precision, process

    for state, allowed in (("TF32 off", False), ("TF32 on", True)):
        process.set_switches(allowed)
        frameworks = [name for name in ("torch", "jax") if find_spec(name)]
        for verdict in precision.measure(precision.arithmetics(frameworks), size.products):
            yield {f"{verdict.framework} {verdict.device} {verdict.dtype}, {state}": verdict.largest_error}
            require(allowed or verdict.keeps_promise, f"{verdict.framework} on {verdict.device}: {verdict.name}")


def tests(size: Size) -> Iterator[Numbers]:
    """The tests that need a GPU, `pytest -m gpu`."""
    if not find_spec("pytest"):
        raise Skipped("pytest is not installed")
    files = [str(path) for path in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in path.read_text()]
    words = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider", "-W", "default", *files]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    found = {what: int(count) for count, what in re.findall(r"(\d+) (passed|failed|skipped|errors?)", last)}
    yield {"passed": 0, **found}
    require(done.returncode == 0, next((line for line in done.stdout.splitlines() if line.startswith("FAILED")), last))
    require("passed" in found or size.device == "cpu", f"no test ran: {last}")


def engines(size: Size) -> Iterator[Numbers]:
    """The Gram matrix of a CNNGP, and with it the gradient with respect to two variances; errors against the torch
    engine in float64, whose own is against cnn-gp's recursion. The share is that of an upper limit, measured in the
    same process with TF32 off: for Triton the vector operations at the rate of multiply-adds in a product of large
    matrices of the dtype, for torch reading and writing each layer's maps once at the rate of a copy."""
    import bench_cnngp
    import numpy as np
    import torch

    from kfx.kernels import CNNGP
    from kfx.kernels.cnngp.architectures import architecture
    from tests.recursion import by_convolutions_of_ones

    image, device = (size.side, size.side), torch.device(size.device)
    network = architecture(size.network, image, 49.0)
    x = torch.rand(size.images, 1, *image, device=device, dtype=torch.float64)
    exact, pull = CNNGP(network, 2.79, 7.86, engine="torch").pullback(x)
    g = torch.eye(len(x), device=device, dtype=torch.float64) + 1 / len(x)
    slopes = pull(g)
    few = x[: size.few]
    theirs = torch.as_tensor(by_convolutions_of_ones(network.layers, few, 2.79, 7.86), device=device)
    of_theirs = f"N {len(few)}, cnn-gp's recursion"
    yield from errors(f"{of_theirs} and torch, float64", Gram=(exact[: size.few, : size.few], theirs))
    pairs = len(x) * (len(x) + 1) / 2
    maps = sum(np.prod(step.size) + np.prod(step.output_size) for step in network.program(image))
    for engine, dtype in (("triton", torch.float32), ("torch", torch.float32), ("torch", torch.float64)):
        what = f"N {len(x)}, {engine} {str(dtype)[6:]}"
        if engine == "triton" and not find_spec("triton"):
            yield {what: "is not installed"}
            continue
        kernel, points, cotangent = CNNGP(network, 2.79, 7.86, engine=engine), x.to(dtype), g.to(dtype)
        gram, pull = kernel.pullback(points)
        if dtype != x.dtype:
            yield from errors(what, Gram=(gram, exact), gradient=(pull(cotangent), slopes))
        ms = milliseconds(lambda: kernel.gram(points), device)  # noqa: B023
        if engine == "triton":
            a = torch.rand(size.large, size.large, device=device, dtype=dtype)
            operations, _ = bench_cnngp.operations(network, image, np.float32)
            least = operations * pairs / len(a) ** 3 * milliseconds(lambda: a @ a, device)  # noqa: B023
        else:
            a = torch.rand(size.large**2, device=device, dtype=dtype)
            least = maps * pairs / (2 * len(a)) * milliseconds(a.clone, device)
        both = milliseconds(lambda: kernel.pullback(points)[1](cotangent), device)  # noqa: B023
        yield {f"{what}: ms": ms, f"{what}: share of the limit": least / ms, f"{what}: ms with the gradient": both}
    few = few.float()
    theirs_ms = milliseconds(lambda: by_convolutions_of_ones(network.layers, few, 2.79, 7.86), device)
    ours_ms = milliseconds(lambda: CNNGP(network, 2.79, 7.86, engine="torch").gram(few), device)
    yield {f"{of_theirs} float32: ms": theirs_ms, f"N {len(few)}, torch float32: ms": ours_ms}


def grams(size: Size) -> Iterator[Numbers]:
    """Gram matrices in float32, and with the gradients with respect to parameters; errors against float64 on the CPU,
    on the first points. Points have 784 features, images 3 × 16 × 16 pixels; CNTK has five layers and pooling."""
    import torch

    from kfx.kernels import CNTK, NNGP, RBF
    from kfx.kernels.cnngp.architectures import architecture

    device = torch.device(size.device)
    pooled = CNTK(architecture("cntk_gap", (16, 16), depth=5), 1.0, 0.1, engine="torch")
    for name, kernel, shape in (
        ("RBF", RBF(12.0), (size.points, 784)),
        ("NNGP", NNGP(2, "relu", 1.6, 0.2, backend="torch"), (size.points, 784)),
        ("CNTK", pooled, (size.pooled, 3, 16, 16)),
    ):
        x = torch.rand(shape, device=device)
        cotangent = torch.eye(len(x), device=device) + 1 / len(x)
        few = x[: max(len(x) // 8, 2)]
        gram, pull = kernel.pullback(few)
        exact, exact_pull = kernel.pullback(few.cpu().double())
        g = cotangent[: len(few), : len(few)]
        yield from errors(f"{name}, N {len(few)}", Gram=(gram, exact), gradient=(pull(g), exact_pull(g.cpu().double())))
        ms = milliseconds(lambda: kernel.gram(x), device)  # noqa: B023
        both = milliseconds(lambda: kernel.pullback(x)[1](cotangent), device)  # noqa: B023
        yield {f"{name}, N {len(x)}: ms": ms, f"{name}, N {len(x)}: ms with the gradient": both}


def iteration(size: Size) -> Iterator[Numbers]:
    """An iteration of ConvNet-GP, recorded as in a run: of Bayesian optimisation, and of Adam with exact gradients; the
    peak memory of the fit beside it. Images are random."""
    from kfx.config.published import read_published

    (printed,) = [
        each for each in read_published("khalid/mnist_convnet_bayesian")
        if each.metric == "seconds an iteration" and not each.overrides
    ]  # fmt: skip
    yield {f"an RTX 3070, {printed.source}: s": printed.value}
    with tempfile.TemporaryDirectory() as folder:
        data = images(Path(folder), size.batch * 5 // 4, 1, size.side)
        for engine in ("torch", "triton") if size.device == "cuda" and find_spec("triton") else ("torch",):
            for optimizer, own in (("bayesian", ["optimizer.initial_points=2"]), ("adam", [])):
                words = ["+experiment=khalid/mnist_convnet_bayesian", *data, "objective=rho", f"optimizer={optimizer}"]
                words += [f"kernel.architecture={size.network}", f"kernel.engine={engine}", "evaluation.batches=1"]
                words += [f"sampler.batch_size={size.batch}", "optimizer.iterations=5", *own]
                words += ["evaluation.n_interpolation=[20]", "evaluation.random_kernels=0"]
                seconds, gigabytes = recorded(Path(folder) / f"{engine}-{optimizer}", size, words)
                yield {f"{engine}, {optimizer}, N_f {size.batch}: s": seconds, f"{engine}, {optimizer}: GB": gigabytes}


def flow(size: Size) -> Iterator[Numbers]:
    """A layer of a flow of images of 784 pixels in float32, N_f = 600; its limit is the time of the two matrix products
    that it needs."""
    import bench_flows
    import torch

    from kfx.numerics.memory import peak_bytes

    device = torch.device(size.device)
    with tempfile.TemporaryDirectory() as folder:
        layer, least, _, _ = bench_flows.of_images(size.flowing, 8, 3, device, Path(folder))
    yield {f"a layer of {size.flowing} images: ms": 1e3 * layer, "its two products: ms": 1e3 * least}
    yield {"share of the limit": least / layer, "GB": peak_bytes(device) / 1e9}


def deep_machine(size: Size) -> Iterator[Numbers]:
    """A deep kernel machine with 64 / 128 / 256 inducing points on minibatches of 256 random images of CIFAR-10's size,
    recorded as in a run, and the hours that as many iterations as the paper's take, without evaluations (Milsom et al.
    2023, Table 2)."""
    from kfx.experiment.plan import Plan

    experiment = "+experiment=milsom/cifar10_16"
    iterations = Plan.of_words([experiment]).config.optimizer.iterations
    with tempfile.TemporaryDirectory() as folder:
        words = [experiment, *images(Path(folder), 320, 3, size.deep_side), *size.deep]
        words += ["evaluation.n_interpolation=[20]", "evaluation.batches=1", "evaluation.train_error=false"]
        words += ["dataset.preprocess=[normalize_channels]", "follow.every=0"]  # what takes no part in an iteration
        seconds, gigabytes = recorded(Path(folder) / "run", size, words)
    yield {
        "iterations a second": 1 / seconds,
        f"hours for {iterations} iterations": iterations * seconds / 3600,
        "GB": gigabytes,
    }


def resumed(size: Size) -> Iterator[Numbers]:
    """A run that is killed half way and goes on by `kfx resume`, against the same run uninterrupted beside it."""
    from kfx import load_run
    from kfx.record.comparison import same_results

    with tempfile.TemporaryDirectory() as folder:
        words = ["run", "dataset=digits", f"kernel={size.killed}", "sampler.batch_size=60", f"device={size.device}"]
        words += [f"optimizer.iterations={size.rows}", f"checkpoint.iterations={size.rows // 10}", "figures=false"]
        words += ["evaluation.n_interpolation=[60]", "device.precision_check=off"]
        whole, cut = Path(folder) / "whole", Path(folder) / "cut"
        ends, killed = (command(*words, f"hydra.run.dir={each}") for each in (whole, cut))
        while killed.poll() is None and (done := rows_of(cut / "trace.csv")) < size.rows // 2:
            time.sleep(0.002)
        killed.kill()
        require(killed.wait() == -signal.SIGKILL, "the run ended before it could be killed")
        yield {"killed after": f"{done} of {size.rows} iterations"}
        require(command("resume", str(cut)).wait() == 0, "kfx resume failed")
        require(ends.wait() == 0, "the uninterrupted run failed")
        same, line = same_results(load_run(whole), load_run(cut), 1e-6)
    yield {"resumed against uninterrupted": line}
    require(same, line)


def command(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "kfx", *words], stdout=sys.stderr)


def rows_of(trace: Path) -> int:
    return trace.read_bytes().count(b"\n") - 1 if trace.is_file() else 0


@dataclass(frozen=True)
class Part:
    """A part of the check, and the seconds after which it is cut off."""

    measure: Callable[[Size], Iterator[Numbers]]
    seconds: float

    @property
    def name(self) -> str:
        return self.measure.__name__


PARTS = (
    Part(card, 20), Part(precision, 45), Part(tests, 55), Part(engines, 90), Part(grams, 40), Part(iteration, 75),
    Part(flow, 45), Part(deep_machine, 50), Part(resumed, 60),
)  # fmt: skip


# ---- what parts share


class Skipped(Exception):
    """A part cannot run here."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)


def errors(what: str, **pairs: tuple[Any, Any]) -> Iterator[Numbers]:
    """The largest differences of pairs of arrays, found and expected, relative to the largest entry; AssertionError
    above `TOLERANCE`."""
    import numpy as np

    for name, pair in pairs.items():
        ours, exact = (np.asarray(each.cpu() if hasattr(each, "cpu") else each, dtype=float) for each in pair)
        error = float(np.abs(ours - exact).max() / np.abs(exact).max())
        yield {f"{what}: error of the {name}": error}
        require(error < TOLERANCE, f"{what}: the error of the {name} is {error:.1e}, above {TOLERANCE:g}")


def milliseconds(work: Callable[[], Any], device: Any) -> float:
    """The median time of three calls after a first one, until the device has finished."""
    import bench_cnngp
    import torch

    def finished() -> None:
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    finished()
    return 1e3 * bench_cnngp.median(finished, 3)


def images(folder: Path, n: int, channels: int, side: int) -> list[str]:
    """Words of a data set of so many random images, a fifth of which are test images."""
    import numpy as np

    rng = np.random.default_rng(0)
    x = rng.random((n, channels, side, side), dtype=np.float32)
    np.savez(folder / "images.npz", x=x * (x > 0.8), y=np.arange(n) % 10)
    return ["dataset=arrays", f"dataset.path={folder / 'images.npz'}", "dataset.task=classification"]


def recorded(folder: Path, size: Size, words: list[str]) -> tuple[float, float]:
    """Seconds of an iteration of a run, by its trace, and the peak memory of its fit in GB."""
    import numpy as np
    import torch

    import kfx

    if size.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    words = [*words, f"device={size.device}", "device.dtype=float32", f"hydra.run.dir={folder}"]
    run = kfx.run([*words, "figures=false", "device.precision_check=off"], progress=False)
    return float(np.median(np.diff(run.trace["seconds"]))), run.metrics["memory"]["fit_bytes"] / 1e9
