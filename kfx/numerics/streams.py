"""Named, independent random streams from one seed."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch


class Streams:
    """One integer seed, any number of named generators that know nothing of each other.

    `Streams(0)["batches"]` gives the same generator object each time; another name, or more draws from
    another stream, never changes what it yields.
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
        """Return where each generator stands, as plain numbers, by name."""
        return {name: generator.bit_generator.state for name, generator in self._generators.items()}

    def restore(self, state: Mapping[str, Mapping[str, object]]) -> None:
        """Set the generators to where `state` was taken; others stay as they are."""
        for name, of_generator in state.items():
            self[name].bit_generator.state = of_generator


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within the block torch draws on the CPU from this seed; afterwards as if nothing had been drawn. No GPU's
    generator is touched."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(before)
