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
    if chosen == "triton":
        _require_triton(x, program)
        from kfx.kernels.cnngp.triton_engine import TritonEngine

        return TritonEngine(program, weights, biases, tile_megabytes)
    from kfx.kernels.cnngp.torch_engine import TorchEngine

    return TorchEngine(program, weights, biases, tile_megabytes)


def _require_triton(x: torch.Tensor, program: tuple[Instruction, ...]) -> None:
    if not find_spec("triton"):
        raise ValueError("engine=triton needs Triton, which comes with torch for CUDA: pip install triton")
    from kfx.kernels.cnngp.triton_engine import LARGEST, runs_on

    if x.dtype != torch.float32 or not runs_on(x.device):
        raise ValueError(
            f"engine=triton takes float32 on a CUDA device, and the points are {x.dtype} on {x.device}; use torch or "
            "auto"
        )
    if max(max(*step.size, *step.output_size) for step in program) > LARGEST:
        raise ValueError(
            f"engine=triton takes images and maps of at most {LARGEST} × {LARGEST}, got {x.shape[2]} × {x.shape[3]}; "
            "use torch"
        )
