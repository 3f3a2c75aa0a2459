"""One table of what kfx takes beside its peers: work, kfx, peer, ratio, and kfx's share of what the machine can do.

python scripts/bench.py [--threads 2] [--cnn-gp PATH] [--only nngp cnngp …] [--record]

Each part is a process of its own on so many cores, and measures kfx and its peers in turns. A limit is a rate measured
in the same process: of fused multiply-adds, or of the matrix products that the work needs at least; docs/performance.md
says which. --record appends the rows to docs/performance.csv.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

HISTORY = Path(__file__).resolve().parent.parent / "docs" / "performance.csv"


@dataclass(frozen=True)
class Row:
    """kfx_ms, peer_ms: milliseconds; limit: the share of it that kfx reaches, or None where nobody knows one."""

    work: str
    kfx_ms: float
    peer: str
    peer_ms: float | None
    limit: float | None = None

    @property
    def ratio(self) -> float | None:
        return None if self.peer_ms is None else self.peer_ms / self.kfx_ms


def nngp(arguments: argparse.Namespace) -> Iterator[Row]:
    import bench_nngp
    import numpy as np

    for features in (64, 784):
        for dtype in (np.float32, np.float64):
            for work, kfx, peer, least in bench_nngp.measured(600, features, dtype, 5):
                what = f"dense NNGP, N = 600, {features} features, {dtype.__name__}: {work}"
                if work == "conversion":
                    yield Row(what, 1e3 * kfx, "the bare jitted call", 1e3 * peer)
                else:
                    yield Row(what, 1e3 * kfx, "neural-tangents", 1e3 * peer, least / kfx if work == "value" else None)


def cnngp(arguments: argparse.Namespace) -> Iterator[Row]:
    import bench_cnngp as bench
    import numpy as np
    import torch

    from kfx.kernels import CNNGP
    from kfx.kernels.cnngp.architectures import ARCHITECTURES

    weight, bias = 2.79, 7.86
    points = np.random.default_rng(0).random((600, 1, 28, 28))
    for dtype in (np.float32, np.float64):
        for name in ("simple", "convnet", "resnet"):
            architecture = ARCHITECTURES[name]((28, 28), 49.0)
            kernel = CNNGP(architecture, weight, bias)
            kernel.prepare(getattr(torch, dtype.__name__), torch.device("cpu"))
            every, _ = bench.operations(architecture, (28, 28), dtype)
            for n in (100, 600):
                x = torch.as_tensor(points[:n].astype(dtype))
                g = torch.eye(n, dtype=x.dtype) + 1 / n
                seconds = bench.median(lambda: kernel.gram(x), 3)  # noqa: B023
                both = bench.median(lambda: kernel.pullback(x)[1](g), 3)  # noqa: B023
                rate = bench.issue_rate(dtype, arguments.threads)  # as the neighbours of the moment leave it
                limit = every * n * (n + 1) / 2 / rate
                peer, theirs = "", None
                if (name, dtype, n) == ("convnet", np.float32, 100):
                    for peer, theirs in _peers_of_convnet(bench, arguments, architecture, points):
                        yield Row(
                            f"CNNGP {name}, N = {n}, float32: value", 1e3 * seconds, peer, theirs, limit / seconds
                        )
                else:
                    what = f"CNNGP {name}, N = {n}, {dtype.__name__}: value"
                    yield Row(what, 1e3 * seconds, peer, theirs, limit / seconds)
                what = f"CNNGP {name}, N = {n}, {dtype.__name__}: value, gradient to two"
                yield Row(what, 1e3 * both, "its own value", 1e3 * seconds)


def pooled(arguments: argparse.Namespace) -> Iterator[Row]:
    import bench_pooled

    for work, seconds, peer, other, share in bench_pooled.measured(arguments.threads, 3):
        yield Row(work, 1e3 * seconds, peer, 1e3 * other, share)


def _peers_of_convnet(bench, arguments, architecture, points):  # type: ignore[no-untyped-def]
    import numpy as np
    import torch

    x = points[:100].astype(np.float32)
    ways: dict[str, Callable[[], object]] = {}
    if find_spec("neural_tangents"):
        theirs = bench.neural_tangents(architecture, 2.79, 7.86)
        ways["neural-tangents"] = lambda: theirs(np.ascontiguousarray(x.transpose(0, 2, 3, 1)))
    if arguments.cnn_gp:
        model = bench.cnn_gp(arguments.cnn_gp, 2.79, 7.86)
        ways["cnn-gp"] = lambda: model(torch.as_tensor(x))
    for name, way in ways.items():
        way()
        yield name, 1e3 * bench.median(way, 3)
    if not ways:
        yield "", None


def rho(arguments: argparse.Namespace) -> Iterator[Row]:
    import bench_rho

    for n in (100, 600):
        found = bench_rho.measured(n, 25)
        for peer in ("two factors", "inverses"):
            yield Row(f"ρ and its cotangent, N_f = {n}", found["one factor (kfx)"], f"NumPy, {peer}", found[peer])


def iterations(arguments: argparse.Namespace) -> Iterator[Row]:
    import bench_parametric

    with tempfile.TemporaryDirectory() as folder:
        for size, count in ((100, 400), (600, 11)):
            found = bench_parametric.measured(size, count, 7, Path(folder))
            for peer, name in (("printed", "NumPy, as printed"), ("index", "NumPy, by index")):
                yield Row(f"RBF iteration, recorded, N_f = {size}", found["kfx"], name, found[peer])


def flows(arguments: argparse.Namespace) -> Iterator[Row]:
    import bench_flows
    import torch

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (0, 200):
            found = bench_flows.of_spirals(count, 200, 5, folder)
            for peer in ("printed", "vectorised"):
                what = f"Swiss roll, a layer of 120 points, {count} beside them"
                yield Row(what, found["kfx"], f"NumPy, {'as ' * (peer == 'printed')}{peer}", found[peer])
        torch.set_num_threads(arguments.threads)
        layer, least, _, _ = bench_flows.of_images(60_000, 2, 3, torch.device("cpu"), folder)
        yield Row("MNIST, a layer of 60 000 images", 1e3 * layer, "its two products", 1e3 * least, least / layer)


def python(arguments: argparse.Namespace) -> Iterator[Row]:
    import bench_python as bench

    for name, times in bench.measured([*bench.kernels(), *bench.fits()], 9):
        beside = max(times.busy, times.niced)
        yield Row(f"plain Python beside a busy core, N = 600: {name}", beside, "alone", min(times.one, times.two))
    ridge, *rest = bench.predictions().items()
    for name, milliseconds in rest:
        yield Row(f"one row, N = 940: {name}", milliseconds, ridge[0], ridge[1])


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "nngp": nngp, "cnngp": cnngp, "rho": rho, "iterations": iterations, "flows": flows,
    "python": python, "pooled": pooled,
}  # fmt: skip
ONE_THREAD = ("rho", "iterations", "flows")


def measure(part: str, arguments: argparse.Namespace) -> None:
    """Print the rows of a part, one JSON object a line."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.threads])  # JAX takes all that it sees
    import scipy.linalg  # noqa: F401  # its BLAS is there before the pools are limited

    from kfx.numerics import process, threads
    from kfx.running.stages import keep_freed_memory

    if part != "python":  # which is to choose for itself
        keep_freed_memory()
        process.keep()
        threads.use(1 if part in ONE_THREAD else arguments.threads)
    for row in PARTS[part](arguments):
        print(json.dumps(asdict(row)), flush=True)


def show(row: Row) -> None:
    peer = "" if row.peer_ms is None else f"{row.peer_ms:.2f}"
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    limit = "" if row.limit is None else f"{row.limit:.0%}"
    print(f"{row.work:<77} {row.kfx_ms:>9.2f} {row.peer:<21} {peer:>10} {ratio:>7} {limit:>6}", flush=True)


def record(rows: list[Row], arguments: argparse.Namespace) -> None:
    from kfx import __version__

    about = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    named = [line.partition(": ")[2].strip() for line in about if line.startswith("model name")]
    processor = named[0] if named else platform.processor()
    common = {
        "version": __version__,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{processor}, {arguments.threads} cores",
    }
    names = [*common, *(field.name for field in fields(Row))]
    new = not HISTORY.exists()
    with HISTORY.open("a", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        if new:
            writer.writeheader()
        for row in rows:
            cells = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in asdict(row).items()}
            writer.writerow(common | cells)
    print(f"{len(rows)} rows appended to {HISTORY.relative_to(HISTORY.parent.parent)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cnn-gp", metavar="PATH", help="a clone of cambridge-mlg/cnn-gp to time as well")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--record", action="store_true", help=f"append the rows to {HISTORY.name}")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part:
        measure(arguments.part, arguments)
        return
    print(
        f"{arguments.threads} cores; ρ, iterations and the Swiss roll on one. Milliseconds, medians; ratio: peer / kfx"
    )
    print(f"{'work':<77} {'kfx':>9} {'peer':<21} {'peer':>10} {'ratio':>7} {'limit':>6}")
    rows = []
    for part in arguments.only:
        words = [sys.executable, "-W", "ignore", __file__, "--part", part, "--threads", str(arguments.threads)]
        words += ["--cnn-gp", arguments.cnn_gp] if arguments.cnn_gp else []
        environment = {"GOMP_SPINCOUNT": "1000", **os.environ}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                rows.append(Row(**json.loads(line)))
                show(rows[-1])
        if process.returncode:
            sys.exit(process.returncode)
    if arguments.record:
        record(rows, arguments)


if __name__ == "__main__":
    main()
