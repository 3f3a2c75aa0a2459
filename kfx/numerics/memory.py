"""How much memory a process has taken at most."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


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
