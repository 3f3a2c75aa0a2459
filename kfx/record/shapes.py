"""What the files of a record hold, by key."""

from __future__ import annotations

from kfx.config.registry import GROUPS

_NUMBER, _WHOLE = "a number or null", "a whole number"
_SPREAD = {"mean": _NUMBER, "sd?": _NUMBER}
_BEFORE_AND_AFTER = {"initial": _SPREAD, "trained": _SPREAD, "change": _SPREAD}
_CHANGE = {
    "metric": "text",
    "n_interpolation": _WHOLE,
    "configured_regularization?": _NUMBER,
    "repeats?": _WHOLE,
    **_SPREAD,
}
_STRETCH = {"metric": "text", "n_interpolation": "a whole number or null", **_SPREAD, "min?": _NUMBER, "max?": _NUMBER}
_PARAMETERS = {"*": "a number, or numbers in lists"}
_TEXTS = {"*": "text or null"}

METRICS = {
    "status": "running, completed, failed or interrupted",
    "reason?": "text",
    "identity?": "text",
    "plugins?": ({"path": "text", "sha256": "text"},),
    "kernel_backend?": "text",
    "n_train?": _WHOLE,
    "features?": ("text",),
    "remarks?": ("text",),
    "parameters?": {
        "initial": _PARAMETERS,
        "final?": _PARAMETERS,
        "initial_folds?": (_PARAMETERS,),
        "folds?": (_PARAMETERS,),
    },
    "rho?": {"initial?": _NUMBER, "final?": _NUMBER, "best?": _NUMBER},
    "rho_batch?": {"first?": _NUMBER, "last?": _NUMBER, "best?": _NUMBER},
    "held_out?": {"batches": _WHOLE, "failed": _WHOLE, "rho": _BEFORE_AND_AFTER, "objective": _BEFORE_AND_AFTER},
    "rho_law?": {"mean": _NUMBER, "sd": _NUMBER, "deviations": {"initial": _NUMBER, "trained": _NUMBER}},
    "fall_back?": {
        **dict.fromkeys(("initial_kept", "one_length_kept?", "smooth_kept?", "fits"), _WHOLE),
        "kept?": ("text",),
        "errors?": ({"*": _NUMBER},),
    },
    "flow_stopped?": {"*": {"layer": _WHOLE, "reason": "text"}},
    "evaluation?": ({**_CHANGE, "kernel": "text", "regularization?": _NUMBER},),
    "evaluation_change?": (_CHANGE,),
    "better?": {},
    "last_layers?": (_STRETCH,),
    "last_iterations?": (_STRETCH,),
    "windows?": ({**_STRETCH, "window": (_WHOLE,)},),
    "timing?": {"*": "a number"},
    "memory?": {"*": "a number"},
}
"""`metrics.json`."""

_ENVIRONMENT = {
    **{f"{name}?": "text or null" for name in ("kfx", "python", "host", "platform", "processor", "device")},
    **{f"{name}?": _TEXTS for name in ("packages", "data_sha256", "options_from", "threading")},
}
ENVIRONMENT = {**_ENVIRONMENT, "earlier?": (_ENVIRONMENT,)}
"""`environment.json`."""

_SECTIONS = ("regularization", "outputs", "checkpoint", "flow", "follow", "interpolation", "cluster")
CONFIG = {
    "seed": _WHOLE,
    **{group: {"name": "text"} for group in GROUPS},
    **{f"{section}?": {} for section in _SECTIONS},
}
"""What every `config.yaml` has; the options check the rest."""
