"""Convert jobs to lines of text and back, between a pool and its workers."""

from __future__ import annotations

import base64
import json
import pickle
from dataclasses import asdict, replace

from kfx.config.plugins import load_plugins, require_plugins
from kfx.jobs.job import Job
from kfx.screen.progress import Audience

END = b"null\n"
"""The line after the last job."""


def line_of(job: Job, threads: int, audience: Audience) -> bytes:
    """The job as a line. threads: of its run, unless its config sets their number. audience: who sees its output."""
    moved = replace(job, plan=job.plan.with_threads(threads))
    content = {
        "plugins": [asdict(plugin) for plugin in job.plan.plugins],
        "directory": str(job.directory),
        "audience": audience,
        "job": base64.b64encode(pickle.dumps(moved)).decode(),
    }
    return json.dumps(content).encode() + b"\n"


def job_of(line: bytes) -> tuple[Job, Audience]:
    """The job of a line, after loading its plugins; ConfigError for a plugin that has changed or is missing."""
    content = json.loads(line)
    load_plugins([plugin["path"] for plugin in content["plugins"]])
    require_plugins(content["plugins"], content["directory"])
    return pickle.loads(base64.b64decode(content["job"])), Audience(content["audience"])
