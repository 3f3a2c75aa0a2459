"""The process that compiles loops computes what those compute that load them."""

from __future__ import annotations

import os
import subprocess
import sys

import pandas as pd
import pytest

from kfx.record.columns import untimed

COMPILED = ["kernel=cntk", "kernel.depth=3", "optimizer=lbfgs", "dataset=digits", "dataset.n_train=40"]
FEW = ["dataset.n_test=10", "evaluation.n_interpolation=[20]", "sampler.batch_size=20", "optimizer.iterations=2"]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("KFX_FAULTS") != "full", reason="compiles for half a minute; make faults runs it")
def test_the_process_that_compiles_has_the_bits_of_those_that_load(tmp_path):
    traces = []
    for name in ("compiles", "loads"):
        words = [*COMPILED, *FEW, "figures=false", "device.precision_check=off", f"hydra.run.dir={tmp_path / name}"]
        here = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "kept"), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-m", "kfx", "run", *words], check=True, env=here, capture_output=True)
        traces.append(untimed(pd.read_csv(tmp_path / name / "trace.csv")))
    pd.testing.assert_frame_equal(*traces, check_exact=True)
