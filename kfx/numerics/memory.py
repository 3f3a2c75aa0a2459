"""The memory of the machine, of an evaluation, and the peak memory of this process."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def machine_bytes() -> int:
    """Return the memory of the machine in bytes, or the limit of the process's control group where that is lower."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    groups = [""]
    with contextlib.suppress(OSError):
        groups += [line.rpartition(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for group in groups:
        for limit in (f"/sys/fs/cgroup{group}/memory.max", f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # no such group, or `max`
                sizes.append(int(Path(limit).read_text()))
    return min(sizes)


def bytes_in_memory(n: int, n_test: int, itemsize: int) -> int:
    """Return the peak memory of an evaluation in memory: Θ, its factor in float64, and the test points' covariances."""
    return n**2 * (itemsize + 8) + n * n_test * itemsize


def forget_peak(device: torch.device) -> None:
    """Let the peak memory of this process, and of a GPU, start anew from what is held now, where the system can."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # of Linux: sets VmHWM to VmRSS


def peak_bytes(device: torch.device) -> int:
    """Return the peak memory of this process in bytes; for a GPU, the peak that torch has allocated there.

    On Linux the peak is that of this process alone. Elsewhere the system may count the process it was forked from.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM")), None)
        if line is not None:
            return int(line.split()[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
