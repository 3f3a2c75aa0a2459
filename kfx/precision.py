"""The arithmetic of the machine: its switches, as kfx sets them."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch


def set_switches(allow_tf32: bool) -> dict[str, Any]:
    """Set both frameworks to full precision, or let them use TF32, and say what was set.

    Set afresh by every run: torch allows TF32 in cuDNN convolutions by default, JAX in products on recent cards.
    """
    torch.backends.cuda.matmul.allow_tf32 = allow_tf32
    torch.backends.cudnn.allow_tf32 = allow_tf32
    jax_precision = "default" if allow_tf32 else "highest"
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = jax_precision  # read when JAX is first imported
    if "jax" in sys.modules:
        sys.modules["jax"].config.update("jax_default_matmul_precision", jax_precision)
    return {
        "torch.backends.cuda.matmul.allow_tf32": allow_tf32,
        "torch.backends.cudnn.allow_tf32": allow_tf32,
        "jax_default_matmul_precision": jax_precision,
    }


def pick_device(name: str) -> torch.device:
    """The device that the config names; `auto` takes CUDA where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)
