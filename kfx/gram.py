"""The Gram matrix of a configured kernel on a configured data set, as files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from kfx import build
from kfx.kernels.base import Kernel
from kfx.outcomes import Event, NumericalError
from kfx.precision import pick_device, set_switches
from kfx.progress import Steps
from kfx.schema import Config
from kfx.streams import Streams


def save(config: Config, folder: Path, test: bool, block: int) -> list[Path]:
    """`gram.npy`, K(x_train, x_train), and with `test` `gram_test.npy`, K(x_test, x_train), `block` rows at a time.

    The files are memory-mapped: they may exceed the memory.
    """
    device, dtype = pick_device(config.device.name), getattr(torch, config.device.dtype)
    set_switches(config.device.allow_tf32)
    streams = Streams(config.seed)
    data = build.dataset(config.dataset, streams)
    kernel = build.starting_kernels(config, [data], streams)[0]
    x_train, x_test = (torch.as_tensor(x, dtype=dtype, device=device) for x in (data.x_train, data.x_test))
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {"gram.npy": x_train} | ({"gram_test.npy": x_test} if test else {})
    n = len(x_train)
    paths = []
    with Steps("gram", sum(-(-len(rows) // block) for rows in wanted.values())) as steps:
        for name, rows in wanted.items():
            path = folder / name
            partial = folder / f"{name}.partial"
            out = np.lib.format.open_memmap(partial, "w+", config.device.dtype, (len(rows), n))
            symmetric = rows is x_train
            for start in range(0, len(rows), block):
                stop = min(start + block, len(rows))
                if symmetric:  # the upper triangle, and its mirror image
                    out[start:stop, start:stop] = _finite(kernel, kernel.gram(rows[start:stop]))
                    if stop < n:
                        right = _finite(kernel, kernel.gram(rows[start:stop], x_train[stop:]))
                        out[start:stop, stop:] = right
                        out[stop:, start:stop] = right.T
                else:
                    out[start:stop] = _finite(kernel, kernel.gram(rows[start:stop], x_train))
                steps.advance()
            out.flush()
            partial.replace(path)
            paths.append(path)
    return paths


def _finite(kernel: Kernel, block: torch.Tensor) -> np.ndarray:
    """The block, if it is finite; NumericalError (diverged) if not."""
    if not bool(block.isfinite().all()):
        raise NumericalError(Event.DIVERGED, f"{kernel!r} has entries that are not finite on these points")
    return block.cpu().numpy()
