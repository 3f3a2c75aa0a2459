"""Time and memory of a minibatch of a deep kernel machine: objective and gradient, against a plain rendering in torch.

python scripts/bench_dkm.py [--inducing 16] [--strides 1,2,2] [--batch 256] [--repeats 5] [--threads 2] [--device cpu]

Both are the ResNet20 of Milsom et al. 2023 on images of 28 × 28 pixels with Batch / Batch normalization, ν = 0.01, 100
samples of the categorical likelihood, from the same weights and the same random numbers: their values must agree. The
plain one is module after module as the paper's formulas read, autograd through Cholesky and inverses, nothing
recomputed. kfx is measured as it is in a run, its `float32` with inducing blocks in float64, and with
`kernel.recompute=true`. Turns alternate; each time is the median, each memory the peak of a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import avg_pool2d, conv2d

from kfx.kernels.conv_dkm.architectures import Architecture
from kfx.kernels.conv_dkm.kernel import PATCHES, ConvDKM
from kfx.kernels.conv_dkm.normalization import Normalizing
from kfx.kernels.conv_dkm.posterior import MEAN, ROOT, WithPosterior
from kfx.numerics.process import set_switches
from kfx.numerics.regularization import Regularization
from kfx.optimizers.evidence import EvidenceLoss
from kfx.running.stages import keep_freed_memory
from kfx.sampling.samplers import Batch

JITTER, STRENGTH, POINTS = 1e-4, 0.01, 60_000


class Plain:
    """The formulas, one after another. weights: by kfx's names."""

    def __init__(self, weights, strides):
        self.weights, self.strides, self.penalty = weights, strides, 0.0

    def __call__(self, x, y, samples):
        w, self.penalty = self.weights, 0.0
        patches = w[PATCHES]
        each = patches[0].numel()
        flat = patches.flatten(1)
        ti = conv2d(x, patches, padding=1).permute(0, 2, 3, 1) / each
        t = avg_pool2d(x.square().mean(dim=1), 3, 1, 1, count_include_pad=False)
        g = self.layers("stem", "", (flat @ flat.mT / each, ti, t), 1)
        for stage, first in enumerate(self.strides, start=1):
            for block in (1, 2, 3):
                name, stride = f"stage{stage}_block{block}", first if block == 1 else 1
                other = self.layers(f"{name}.block", "1", g, stride)
                other = self.layers(f"{name}.block", "2", other, 1)
                if f"{name}.shortcut.convolution.weight" in w:
                    g = self.convolution(f"{name}.shortcut.convolution", g, stride)
                    g = self.normalization(f"{name}.shortcut.normalization", g)
                g = tuple(0.5 * a + 0.5 * b for a, b in zip(g, other, strict=True))
        ii, ti, t = g
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(ii))
        rest = t - ((ti @ inverse) * ti).sum(dim=-1)
        mean = ti.mean(dim=(1, 2))
        t = ((mean @ inverse) * mean).sum(dim=-1) + rest.sum(dim=(1, 2)) / t[0].numel() ** 2
        ii, ti, t = self.normalization("top_normalization", (ii, mean, t))
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(ii))
        mu, a = w[MEAN], w[ROOT] @ w[ROOT].mT / len(ii)
        explained = ti @ inverse
        f = explained @ mu
        variance = t - (explained * ti).sum(dim=-1) + ((explained @ a) * explained).sum(dim=-1)
        divergence = 0.5 * (
            mu.shape[1] * (torch.trace(inverse @ a) - torch.logdet(inverse) - torch.logdet(a) - len(ii))
            + ((mu.mT @ inverse) * mu.mT).sum()
        )
        f = f + variance.sqrt()[:, None] * samples
        likelihood = (torch.log_softmax(f, dim=-1) * y).sum(dim=-1).mean()
        return (divergence + self.penalty) / POINTS - likelihood

    def layers(self, name, number, g, stride):
        g = self.convolution(f"{name}.convolution{number}", self.arccos(f"{name}.arccos{number}", g), stride)
        return self.normalization(f"{name}.normalization{number}", self.gram(f"{name}.gram{number}", g))

    def arccos(self, name, g):
        ii, ti, t = g
        w, b = (self.weights[f"{name}.log_{kind}_variance"].exp() for kind in ("weight", "bias"))
        diagonal, t = ii.diagonal() * (1 + JITTER) + JITTER, t * (1 + JITTER) + JITTER

        def phi(c, others):
            a = others[..., None] * diagonal
            angle = torch.acos(c / a.sqrt())
            return ((a - c**2).sqrt() + (math.pi - angle) * c) / math.pi

        off = 1 - torch.eye(len(ii), dtype=ii.dtype, device=ii.device)
        ii = phi(ii * off, diagonal) * off + torch.diag(diagonal)
        return ii * w + b, phi(ti, t) * w + b, t * w + b

    def convolution(self, name, g, stride):
        ii, ti, t = g
        weight = self.weights[f"{name}.weight"] / math.sqrt(ii.shape[0])
        size = weight.shape[-1]
        c = weight.permute(2, 3, 0, 1)
        ti = conv2d(ti.permute(0, 3, 1, 2), weight, stride=stride, padding=size // 2).permute(0, 2, 3, 1) / size**2
        t = avg_pool2d(t, size, stride, size // 2, count_include_pad=False)
        return (c @ ii @ c.mT).mean(dim=(0, 1)), ti, t

    def gram(self, name, k):
        ii, ti, t = k
        v = self.weights[f"{name}.root"]
        g = v @ v.mT / len(v) * self.weights[f"{name}.log_scale"].exp()
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(ii))
        explained = ti @ inverse
        made = explained @ g
        t = t - (explained * ti).sum(dim=-1) + (made * explained).sum(dim=-1)
        log_determinant = torch.logdet(inverse) + torch.logdet(g)
        self.penalty = self.penalty + 0.5 * STRENGTH * (torch.trace(inverse @ g) - log_determinant - len(g))
        return g, made, t

    def normalization(self, name, g):
        ii, ti, t = g
        a = ii.diagonal().mean().rsqrt() * self.weights[f"{name}.inducing_scale"].exp()
        b = t.mean().rsqrt() * self.weights[f"{name}.point_scale"].exp()
        return ii * a * a, ti * a * b, t * b * b


def prepared(arguments, dtype, recompute):
    """The machine, images and targets, with every Gram matrix a little off its kernel."""
    first = arguments.inducing
    strides = tuple(map(int, arguments.strides.split(",")))
    how = Normalizing("batch", "batch")
    architecture = Architecture(
        (1, 28, 28), (first, 2 * first, 4 * first), strides, 3, STRENGTH, JITTER, "average", how, True, recompute
    )
    rng, device = np.random.default_rng(0), torch.device(arguments.device)
    torch.manual_seed(0)
    x = torch.as_tensor(rng.normal(size=(arguments.batch, 1, 28, 28)), dtype=dtype, device=device)
    y = torch.eye(10, dtype=torch.float64, device=device)[torch.as_tensor(rng.integers(0, 10, arguments.batch))]
    kernel = ConvDKM(architecture).to(dtype, device).with_patches(x, rng)
    machine = WithPosterior.over(kernel, x[:1], 10, rng)
    moved = machine.flat * (1 + 0.01 * torch.as_tensor(rng.normal(size=len(machine.flat)), dtype=dtype, device=device))
    return machine.with_flat(moved), x, y, strides


def turn(arguments, name):
    """A function that computes value and gradient once, and gives the value."""
    who, precision, *again = name.split()
    dtype = getattr(torch, precision)
    machine, x, y, strides = prepared(arguments, dtype, True if again else None)
    loss = EvidenceLoss(100, False, Regularization(1e-4, "centered"), machine, x, y)
    batch, vector = Batch(np.arange(len(x)), len(x) // 2), machine.flat
    if who == "kfx":
        scale = len(x) / POINTS  # as if the batch were of so many points

        def ours():
            found = loss(vector, batch)
            found.require()
            penalties = sum(v for k, v in found.measured.items() if k == "kl" or k.startswith("penalty"))
            return found.objective - penalties / len(x) * (1 - scale)

        return ours
    samples = torch.randn(100, len(x), 10, generator=loss._generator(batch), dtype=dtype, device=x.device)

    def plain():
        weights = {k: v.detach().clone().requires_grad_() for k, v in machine.parameters.items()}
        value = Plain(weights, strides)(x, y.to(dtype), samples)
        torch.autograd.grad(value, [v for k, v in weights.items() if not k.endswith(".mean")])
        return float(value.detach())

    return plain


def peak_memory():
    """MB of this process since it began; ru_maxrss would count its parent too."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return int(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


_KINDS = (("plain", ""), ("kfx", ""), ("kfx", " recomputed"))
NAMES = tuple(f"{who} {dtype}{end}" for dtype in ("float64", "float32") for who, end in _KINDS)


def memory(arguments, name):
    """Peak of a process that does three turns, in MB."""
    words = [sys.executable, __file__, "--only", name, "--batch", str(arguments.batch), "--strides", arguments.strides]
    words += ["--inducing", str(arguments.inducing), "--threads", str(arguments.threads), "--device", arguments.device]
    return json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inducing", type=int, default=16, help="of the first stage; the others two and four times")
    parser.add_argument("--strides", default="1,2,2")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    set_switches(False)
    keep_freed_memory()
    if arguments.only:
        step = turn(arguments, arguments.only)
        for _ in range(3):
            step()
        if arguments.device != "cpu":
            print(torch.cuda.max_memory_allocated() / 1e6)
        else:
            print(peak_memory())
        return
    steps = {name: turn(arguments, name) for name in NAMES}
    values = {name: step() for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for _ in range(arguments.repeats):
        for name, step in steps.items():
            started = time.perf_counter()
            step()
            seconds[name].append(time.perf_counter() - started)
    plain = {precision: np.median(seconds[f"plain {precision}"]) for precision in ("float32", "float64")}
    print(f"batch {arguments.batch}, inducing {arguments.inducing} / …, strides {arguments.strides}")
    print(f"{'':<22} {'value':>10} {'seconds':>9} {'plain / it':>11} {'peak MB':>9}")
    for name in NAMES:
        median = float(np.median(seconds[name]))
        against = plain[name.split()[1]] / median
        print(f"{name:<22} {values[name]:>10.6f} {median:>9.3f} {against:>11.2f} {memory(arguments, name):>9.0f}")
    double, single = (float(np.median(seconds[f"kfx {precision}"])) for precision in ("float64", "float32"))
    print(f"float64 / float32: {double / single:.2f}")


if __name__ == "__main__":
    main()
