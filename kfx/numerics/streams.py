"""Named, independent random streams from one seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch


class Streams:
    """Independent random generators, one for each name, derived from one integer seed.

    `streams["batches"]` is the same generator object at every access. Its draws depend neither on which other names
    are used nor on how much is drawn from them.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, np.random.Generator] = {}

    def __getitem__(self, name: str) -> np.random.Generator:
        if name not in self._generators:
            sequence = np.random.SeedSequence([self.seed, zlib.crc32(name.encode())])
            self._generators[name] = np.random.Generator(np.random.PCG64(sequence))
        return self._generators[name]

    def state(self) -> dict[str, Mapping[str, object]]:
        """Return the state of each generator used so far, as plain numbers, by name."""
        return {name: generator.bit_generator.state for name, generator in self._generators.items()}

    def restore(self, state: Mapping[str, Mapping[str, object]]) -> None:
        """Restore the generators in `state`, a result of `state()`; the others stay as they are."""
        for name, of_generator in state.items():
            self[name].bit_generator.state = of_generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch's CPU generator inside the block, and restore its state afterwards. GPU generators are not touched."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
