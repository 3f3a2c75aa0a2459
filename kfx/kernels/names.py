"""Names of parameters: for display, and of those with a number for each feature. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

NORM = ".norm"
"""Suffix of the name of an array's Euclidean norm, see `Parameters.shown`."""
OF_FEATURES = ("lengths", "stretch")  # with a number for each feature, of `ARD` and of `SmoothAndRough`


def lengths_of(parameters: Mapping[str, Any]) -> np.ndarray | None:
    """Return the length of each feature, (features,), of a kernel with these parameters; None for one with one length.
    Of `SmoothAndRough`, the shorter one of its two parts."""
    lengths = parameters.get("lengths")
    if lengths is None or np.ndim(lengths) == 0:
        return None
    return np.asarray(lengths) * np.minimum(parameters.get("stretch", 1.0), 1.0)


def readable(name: str, node: object) -> str:
    """Return a parameter's name for display: `0.sigma` of a sum as `rbf sigma`, or `rbf 2 sigma` for its second RBF.

    node: the kernel's part of a config, checked or as recorded.
    """
    parts = _get(node, "parts")
    head, _, rest = name.partition(".")
    if not parts or not rest or not head.isdigit() or int(head) >= len(parts):
        return name
    kernels = [part[1] if isinstance(part, tuple) else part for part in parts]
    own = kernels[int(head)]
    kind = str(_get(own, "name"))
    if rest.startswith("0.") and not _get(own, "parts"):  # below a coefficient
        rest = rest[2:]
    same = [i for i, kernel in enumerate(kernels) if _get(kernel, "name") == kind]
    number = f" {same.index(int(head)) + 1}" if len(same) > 1 else ""
    return f"{kind}{number} {readable(rest, own)}"


def _get(node: object, key: str) -> Any:
    return node.get(key) if isinstance(node, Mapping) else getattr(node, key, None)
