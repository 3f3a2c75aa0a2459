"""Convert jobs to lines of text and back, between a pool and its workers."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from kfx.config.plugins import Plugin, load_plugins, require_plugins
from kfx.experiment.plan import Plan
from kfx.jobs.job import Job
from kfx.screen.progress import Audience

END = b"null\n"
"""The line after the last job."""


def line_of(job: Job, threads: int, audience: Audience) -> bytes:
    """The job as a line. threads: of its run, unless its config sets their number. audience: who sees its output."""
    plan = job.plan.with_threads(threads)
    content = {
        "words": plan.words,
        "config": OmegaConf.to_container(plan.raw, resolve=False),
        "plugins": [asdict(plugin) for plugin in plan.plugins],
        "directory": str(job.directory),
        "roots": [str(root) for root in job.roots],
        "number": job.number,
        "of": job.of,
        "log": job.log and str(job.log),
        "is_checked": job.is_checked,
        "audience": audience,
    }
    return json.dumps(content).encode() + b"\n"


def log_of(line: bytes) -> Path | None:
    """The file for the output of a line's job; None for the streams of the command."""
    log = json.loads(line)["log"]
    return Path(log) if log else None


def job_of(line: bytes) -> tuple[Job, Audience]:
    """The job of a line, after loading its plugins; ConfigError for a plugin that has changed or is missing.

    The config travels as plain values, because a plugin may make its options' classes where no pickle finds them.
    """
    content = json.loads(line)
    load_plugins([plugin["path"] for plugin in content["plugins"]])
    require_plugins(content["plugins"], content["directory"])
    raw = OmegaConf.create(content["config"])
    assert isinstance(raw, DictConfig)
    plan = replace(
        Plan.of_config(raw, content["words"]), plugins=tuple(Plugin(**plugin) for plugin in content["plugins"])
    )
    job = Job(
        plan,
        Path(content["directory"]),
        [Path(root) for root in content["roots"]],
        content["number"],
        content["of"],
        log_of(line),
        content["is_checked"],
    )
    return job, Audience(content["audience"])
