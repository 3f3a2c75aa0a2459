"""Sums, products and columns of a Gram store, each in one pass over its tiles."""

from __future__ import annotations

import numpy as np
import torch

from kfx.store.factor_store import ahead
from kfx.store.gram_store import GramStore
from kfx.store.tiles import Tiles


def diagonal(store: GramStore) -> torch.Tensor:
    """K(x_i, x_i) for all points, (n,), float64."""
    parts = [store.gram.read(i, i).diagonal() for i in range(store.gram.grid[0])]
    return torch.from_numpy(np.concatenate(parts).astype(np.float64))


def total(store: GramStore, size: int) -> float:
    """Σ_ij K(x_i, x_j) over the first `size` points."""
    found = 0.0
    for (i, j), block in ahead(store.gram, _leading(store.gram, size)):
        part = block[: _stop(store.gram, i, size), : _stop(store.gram, j, size)]
        found += (1 if i == j else 2) * float(part.sum(dtype=torch.float64))
    return found


def product(store: GramStore, v: torch.Tensor, rows: int | None = None) -> torch.Tensor:
    """K(x[:rows], x[:k]) v, (rows, outputs), float64. v: (k, outputs). rows: at least k; None for k."""
    n, tiles = len(v), store.gram
    out = v.new_zeros(rows or n, v.shape[1])
    for (i, j), tile in ahead(tiles, _leading(tiles, len(out))):
        block = tile.to(torch.float64)
        at, across = tiles.rows(i), tiles.rows(j)
        high, wide = min(at.stop, len(out)), min(across.stop, n)
        if across.start < n:
            out[at.start : high] += block[: high - at.start, : wide - across.start] @ v[across.start : wide]
        if i != j and at.start < n:  # the mirrored tile
            tall = min(at.stop, n)
            out[across] += block[: tall - at.start].mT @ v[at.start : tall]
    return out


def columns(store: GramStore, size: int, points: np.ndarray) -> torch.Tensor:
    """K(x[:size], x[points]), (size, len(points)), float64. points: indices in ascending order, below `size`."""
    out, tiles = torch.empty(size, len(points), dtype=torch.float64), store.gram
    for (i, j), block in ahead(tiles, _leading(tiles, size)):
        at, across = tiles.rows(i), tiles.rows(j)
        high, wide = min(at.stop, size), min(across.stop, size)
        for own, other, part in ((slice(at.start, high), across, block), (slice(across.start, wide), at, block.mT)):
            first, last = np.searchsorted(points, [other.start, other.stop])
            if first < last:
                chosen = torch.from_numpy(points[first:last] - other.start)
                out[own, first:last] = part[: own.stop - own.start, chosen].to(torch.float64)
            if i == j:
                break
    return out


def predictions(store: GramStore, alpha: torch.Tensor) -> torch.Tensor:
    """K(x*, x[:k]) α, (m, outputs), float64. alpha: (k, outputs)."""
    tiles = store.test
    assert tiles is not None
    out = alpha.new_zeros(tiles.shape[0], alpha.shape[1])
    needed = -(-len(alpha) // tiles.tile)
    for (i, j), block in ahead(tiles, [(i, j) for i, j in tiles.places() if j < needed]):
        at = tiles.columns(j)
        stop = min(at.stop, len(alpha))
        out[tiles.rows(i)] += block[:, : stop - at.start].to(torch.float64) @ alpha[at.start : stop]
    return out


def _leading(tiles: Tiles, size: int) -> list[tuple[int, int]]:
    return [(i, j) for i in range(-(-size // tiles.tile)) for j in range(i + 1)]


def _stop(tiles: Tiles, i: int, size: int) -> int:
    return min(size - i * tiles.tile, tiles.tile)
