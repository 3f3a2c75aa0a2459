"""Versions, commit and machine of a run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import socket
import subprocess
import sys
from functools import cache
from itertools import groupby
from pathlib import Path

import torch

from kfx.files import Document
from kfx.version import __version__

_PACKAGES = (
    "numpy",
    "scipy",
    "numba",
    "torch",
    "triton",
    "jax",
    "jaxlib",
    "neural-tangents",
    "hydra-core",
    "omegaconf",
    "scikit-learn",
    "scikit-optimize",
    "pandas",
)
_DECIDE_BITS = ("threads", "threads_of_fit", "threads_of_evaluation", "cores", "processor", "device", "python")


_THREADING = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def describe(
    seed: int,
    device: torch.device,
    switches: Document,
    checksums: dict[str, str],
    threads: int,
    threads_of_fit: int,
    threads_of_evaluation: int,
) -> Document:
    """The content of `environment.json`. threads: the number that may be used; small work uses fewer."""
    return {
        "kfx": __version__,
        **_git(),
        **software(),
        "host": socket.gethostname(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": threads,
        "threads_of_fit": threads_of_fit,
        "threads_of_evaluation": threads_of_evaluation,
        "threading": {name: os.environ[name] for name in _THREADING if name in os.environ},
        "precision_switches": switches,
        "data_sha256": checksums,
        "seed": seed,
    }


@cache
def software() -> Document:
    """The versions of Python and of the packages that compute, as `environment.json` holds them."""
    packages = {name: version for name in _PACKAGES if (version := _version(name))}
    return {"python": platform.python_version(), "packages": packages}


def changes(*environments: Document) -> str:
    """Return what differs between environments, in their order, and may change the last digits of a run.

    For example `threads 1 → 2, torch 2.9.0 → 2.10.0`; empty if nothing does. An environment without a package is passed
    over: there it has computed nothing.
    """
    decisive = [
        {name: value for name, value in each.items() if name in _DECIDE_BITS} | each.get("packages", {})
        for each in environments
    ]
    names = dict.fromkeys(name for each in decisive for name in each)
    steps = {name: [value for value, _ in groupby(str(e[name]) for e in decisive if name in e)] for name in names}
    return ", ".join(f"{name} {' → '.join(values)}" for name, values in steps.items() if len(values) > 1)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git() -> Document:
    """The commit of the checkout that kfx runs from; empty for an installed wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {"git_commit": None, "git_dirty": None}
    return {
        "git_commit": _output(["-C", str(root), "rev-parse", "HEAD"]),
        "git_dirty": bool(_output(["-C", str(root), "status", "--porcelain"])),
    }


def _output(command: list[str]) -> str | None:
    # Git's environment variables and settings can name programs to run.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    clean |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    safe = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null"]
    try:
        done = subprocess.run(
            ["git", *safe, *command], capture_output=True, text=True, timeout=10, check=True, env=clean
        )
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def processor() -> str:
    """The name of the processor."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
