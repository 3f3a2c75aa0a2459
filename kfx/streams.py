"""Named, independent random streams from one seed."""

from __future__ import annotations

import zlib

import numpy as np


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
