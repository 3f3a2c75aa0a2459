"""How much memory there is, and how much a process has taken at most."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import torch


def machine_bytes() -> int:
    """Of the machine, or of the control group that the process runs in, where that has less."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    groups = [""]
    with contextlib.suppress(OSError):
        groups += [line.rpartition(":")[2] for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for group in groups:
        for limit in (f"/sys/fs/cgroup{group}/memory.max", f"/sys/fs/cgroup/memory{group}/memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # no such group, or `max`
                sizes.append(int(Path(limit).read_text()))
    return min(sizes)


def peak_bytes(device: torch.device) -> int:
    """Of this process since it began; on a GPU what torch has allocated there. Linux counts this process alone,
    elsewhere what the system says of it and what it was forked from."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status")
    if status.is_file():
        line = next((line for line in status.read_text().splitlines() if line.startswith("VmHWM")), None)
        if line is not None:
            return int(line.split()[1]) * 1024
    import resource  # not on Windows

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
