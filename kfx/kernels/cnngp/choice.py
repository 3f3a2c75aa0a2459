"""Which engine computes a CNNGP where."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

import torch

from kfx.kernels.cnngp.engine import Engine
from kfx.kernels.cnngp.layers import Instruction

_COMPILED = (torch.float32, torch.float64)


def engine_on(chosen: str, device: torch.device) -> str:
    """The engine that `chosen`, which may be `auto`, means there."""
    if chosen == "auto":
        return "fused" if device.type == "cpu" and find_spec("numba") else "torch"
    return chosen


def prepare(chosen: str, dtype: torch.dtype, device: torch.device) -> None:
    """Do beforehand what the first Gram matrix would otherwise do once, as compiling."""
    if engine_on(chosen, device) == "fused":
        from kfx.kernels.cnngp.fused_engine import compile_for

        compile_for(dtype)


def engine_for(
    chosen: str,
    x: torch.Tensor,
    program: tuple[Instruction, ...],
    weights: Sequence[float],
    biases: Sequence[float],
    tile_megabytes: float,
) -> Engine:
    """The engine for points like x; ValueError where the chosen one does not take them."""
    if engine_on(chosen, x.device) == "fused" and (x.dtype in _COMPILED or chosen == "fused"):
        if x.device.type != "cpu" or x.dtype not in _COMPILED:
            raise ValueError(
                f"engine=fused takes float32 or float64 on a CPU, and the points are {x.dtype} on {x.device}; "
                "use torch or auto"
            )
        from kfx.kernels.cnngp.fused_engine import FusedEngine

        return FusedEngine(program, weights, biases)
    from kfx.kernels.cnngp.torch_engine import TorchEngine

    return TorchEngine(program, weights, biases, tile_megabytes)
