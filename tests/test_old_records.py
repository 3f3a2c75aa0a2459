"""A record that version 0.1 wrote is refused: its rho is another quantity."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kfx import load_run
from kfx.outcomes import RecordError
from kfx.record.comparison import same_results


def test_a_record_of_the_first_version_is_refused(kfx, in_folder):
    words = ["optimizer.iterations=2", "sampler.batch_size=30", "figures=false", "device.precision_check=off"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    path = in_folder / "r/metrics.json"
    content = json.loads(path.read_text())
    for name in ("checksums", "rho_batch"):
        del content[name]
    content["rho"] = {"initial": 0.5, "final": 0.4, "best": 0.3}
    path.write_text(json.dumps(content))
    with pytest.raises(RecordError, match=r"is of kfx 0\.1, whose rho was that of single batches; run its config anew"):
        load_run("r")
    code, _, err = kfx("rerun", "r", "--output", "again")
    assert (code, err.count("\n")) == (1, 1)


def test_metrics_of_later_versions_do_not_count(kfx, in_folder):
    words = ["optimizer.iterations=2", "sampler.batch_size=30", "figures=false", "device.precision_check=off"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    now = load_run("r")
    then = replace(now, evaluation=now.evaluation.query("metric != 'mae'").reset_index(drop=True))
    assert same_results(then, now, 0.0)[0]
    assert not same_results(now, then, 0.0)[0], "a metric is lost"
    lost = replace(now, evaluation=now.evaluation[1:].reset_index(drop=True))
    assert not same_results(lost, now, 0.0)[0], "a row is lost"
