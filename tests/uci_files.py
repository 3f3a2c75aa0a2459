"""Small files in the layouts of the two collections of UCI tables."""

from __future__ import annotations

import gzip

import numpy as np


def write_uci(folder, rows=130):
    """Write uci/wine and uci_regression/yacht; return their points with the target in the last column."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3))
    labels = (x[:, 0] + 0.3 * rng.normal(size=rows) > 0).astype(int) + (x[:, 1] > 1)
    wine, yacht = folder / "uci/wine", folder / "uci_regression/yacht"
    for each in (wine, yacht):
        each.mkdir(parents=True)
    lines = ["\t" + "\t".join([*(f"f{i}" for i in range(3)), "clase"])]
    lines += [
        "\t".join(map(repr, [i + 1, *row.tolist(), int(label)]))
        for i, (row, label) in enumerate(zip(x, labels, strict=True))
    ]
    (wine / "wine_R.dat").write_text("\n".join(lines) + "\n")
    order = rng.permutation(rows)
    halves = [order[: rows // 2], order[rows // 2 :]]
    (wine / "conxuntos.dat").write_text("\n".join(" ".join(map(str, part)) for part in halves))
    folds = [part for fold in np.array_split(order, 4) for part in (np.setdiff1d(order, fold), fold)]
    (wine / "conxuntos_kfold.dat").write_text("\n".join(" ".join(map(str, part)) for part in folds))
    table = np.column_stack([x, np.sin(x[:, 0]) + 0.1 * rng.normal(size=rows)])
    masks = np.stack([np.isin(np.arange(rows), rng.permutation(rows)[: rows // 10]) for _ in range(10)], axis=1)
    for name, array in (("data", table), ("test_mask", masks.astype(int))):
        with gzip.open(yacht / f"{name}.csv.gz", "wt") as stream:
            np.savetxt(stream, array, delimiter=",")
    return np.column_stack([x, labels]), table, folds, masks
