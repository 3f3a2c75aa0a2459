"""The parameters of an estimator that are settings, as a config has them."""

from __future__ import annotations

from collections.abc import Mapping

Chosen = str | Mapping[str, object]
"""An option by its name, or by settings with a name."""

GROUPS = ("kernel", "objective", "optimizer", "sampler", "device")
SECTIONS_TAKEN = ("regularization", "flow", "outputs")
EVALUATION = ("solver", "centres", "choose")
"""Parameters of an estimator that are settings of the evaluation."""
NESTED = (*GROUPS, *SECTIONS_TAKEN)
"""Parameters of an estimator that have settings."""
