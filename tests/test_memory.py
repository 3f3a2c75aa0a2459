"""The peak of memory is that of what is measured, not of what the process did before."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch

from kfx.numerics.memory import forget_peak, peak_bytes

CPU = torch.device("cpu")


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux alone forgets a peak")
def test_a_peak_is_forgotten():
    with mmap.mmap(-1, 300_000_000) as held:
        held.write(b"x" * len(held))
        filled = peak_bytes(CPU)
    assert peak_bytes(CPU) == filled
    forget_peak(CPU)
    assert peak_bytes(CPU) < filled - 200_000_000
