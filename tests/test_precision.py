"""The precision check, with stand-in devices that round as real ones do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from kfx import load_run
from kfx.numerics import precision, process
from kfx.numerics.precision import TorchArithmetic, classify, complaint, measure, report
from kfx.plots.precision import error_against_size

SIZES = (100, 200)


class Rounding(TorchArithmetic):
    """A device that keeps `bits` explicit bits of each operand's mantissa and adds in float32."""

    def __init__(self, bits, dtype="float32", device="cuda:0"):
        super().__init__("cpu", dtype)
        self.bits, self.reported = bits, device

    def _put(self, array):
        mantissa, exponent = np.frexp(array)
        scale = 2.0 ** (self.bits + 1)
        rounded = np.ldexp(np.round(mantissa * scale) / scale, exponent)
        return torch.as_tensor(rounded, dtype=getattr(torch, self.dtype))


def verdict_of(arithmetic):
    (verdict,) = measure([arithmetic], SIZES)
    return verdict


def on_gpu(verdict):
    return precision.Verdict(
        verdict.framework,
        "cuda:0",
        verdict.dtype,
        verdict.products,
        verdict.distances,
        verdict.convolution,
        verdict.name,
    )


@pytest.mark.parametrize(
    ("bits", "name"), [(52, "float32"), (23, "float32"), (10, "tf32 or float16"), (7, "bfloat16"), (2, "broken")]
)
def test_verdicts_of_stand_ins(bits, name):
    verdict = verdict_of(Rounding(bits))
    assert verdict.name == name
    assert verdict.keeps_promise == (name == "float32")


def test_this_cpu_keeps_its_promises():
    for verdict in measure(precision.arithmetics(("torch", "jax")), SIZES):
        assert verdict.keeps_promise, verdict


def test_float64_that_is_float32_is_found_out():
    assert verdict_of(Rounding(23, "float64")).name == "float32"
    assert not verdict_of(Rounding(23, "float64")).keeps_promise


def test_a_bad_convolution_is_enough():
    class BadConvolution(TorchArithmetic):
        def convolution(self, images, weights):
            return Rounding(10).convolution(images, weights)

    assert verdict_of(BadConvolution("cpu", "float32")).name == "tf32 or float16"


def test_classes_by_error():
    errors = [0.0, 5e-13, 5e-6, 5e-4, 5e-3, 0.5, float("nan"), float("inf")]
    names = ["float64", "float64", "float32", "tf32 or float16", "bfloat16", "broken", "broken", "broken"]
    assert [classify(e) for e in errors] == names


def test_nan_is_broken():
    class NotANumber(TorchArithmetic):
        def product(self, a, b):
            return super().product(a, b) * np.nan

    assert verdict_of(NotANumber("cpu", "float32")).name == "broken"


def test_the_complaint_names_the_setting_to_change():
    tf32 = on_gpu(verdict_of(Rounding(10)))
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert "device.allow_tf32=false" in complaint([tf32], gpu, "float32", allow_tf32=True)
    assert "device.dtype=float64" in complaint([tf32], gpu, "float32", allow_tf32=False)
    assert complaint([tf32], cpu, "float32", allow_tf32=False) is None
    of_cpu = complaint([replace(tf32, device="cpu")], cpu, "float32", allow_tf32=False)
    assert of_cpu is not None
    assert of_cpu.endswith("set device.dtype=float64"), "no other device, no driver"
    assert complaint([tf32], gpu, "float64", allow_tf32=False) is None


def test_report_is_json_with_the_switches():
    content = json.loads(json.dumps(report([verdict_of(Rounding(10))], process.set_switches(False))))
    assert content["switches"]["torch.backends.cudnn.allow_tf32"] is False
    assert content["verdicts"][0]["verdict"] == "tf32 or float16"
    assert not content["gpu"]


def test_switches_are_set_afresh():
    process.set_switches(True)
    assert torch.backends.cudnn.allow_tf32
    assert process.set_switches(False)["jax_default_matmul_precision"] == "highest"
    assert not torch.backends.cudnn.allow_tf32
    assert not torch.backends.cuda.matmul.allow_tf32


SMALL = ["dataset=digits", "dataset.n_train=60", "dataset.n_test=30", "sampler.batch_size=20", "optimizer.iterations=2"]


def test_a_run_records_the_check(kfx, in_folder):
    assert kfx("run", *SMALL, "figures=true", "device.precision_check=warn", "hydra.run.dir=r")[0] == 0
    content = json.loads((in_folder / "r/precision.json").read_text())
    assert [v["dtype"] for v in content["verdicts"]] == ["float32", "float64"]
    assert len(content["verdicts"][0]["products"]) == 4
    assert not (in_folder / "r/figures/precision.png").exists()  # nothing is wrong
    kfx("run", *SMALL, "hydra.run.dir=off")
    assert not (in_folder / "off/precision.json").exists()


@pytest.mark.slow
def test_strict_refuses_and_warn_goes_on(kfx, monkeypatch):
    monkeypatch.setattr(precision, "of_this_process", lambda *_: measure([Rounding(10)], SIZES))
    words = [*SMALL, "device.dtype=float32"]
    code, _, err = kfx("run", *words, "device.precision_check=strict", "hydra.run.dir=strict")
    assert code == 1
    assert "delivers tf32 or float16" in err
    assert load_run("strict").metrics["status"] == "failed"
    assert "precision_check=strict" in load_run("strict").metrics["reason"]
    code, _, err = kfx("run", *words, "device.precision_check=warn", "hydra.run.dir=warn")
    assert code == 0
    assert "warning: torch on cpu in float32 delivers tf32 or float16" in err
    of_gram = [*SMALL[:3], "kernel=rbf", "device.dtype=float32", "--output", "gram"]
    code, _, err = kfx("gram", *of_gram, "device.precision_check=strict")
    assert code == 1
    assert "device.precision_check=strict" in err
    assert not Path("gram/gram.npy").exists()


@pytest.mark.slow
def test_the_command_prints_its_table(kfx, in_folder):
    code, out, _ = kfx("precision", "--output", "p")
    assert code == 0
    for word in ("torch", "jax", "float32", "float64", "conv2d 7 × 7", "allow_tf32 = False"):
        assert word in out
    assert ("no GPU" in out) == (not torch.cuda.is_available())
    assert {p.name for p in (in_folder / "p").iterdir()} == {"precision.json", "precision.png"}


def test_machines_stand_side_by_side(kfx, in_folder):
    switches = process.set_switches(False)
    for name, bits, tf32 in (("RTX 3070", 23, False), ("H100", 10, True)):
        content = {"machine": name, **report([on_gpu(verdict_of(Rounding(bits)))], switches)}
        content["switches"]["torch.backends.cuda.matmul.allow_tf32"] = tf32
        (in_folder / f"{name}.json").write_text(json.dumps(content))
    code, out, err = kfx("precision", "RTX 3070.json", "H100.json", "--output", "p")
    assert code == 0, err
    rows = {line.split("│")[1].strip(): line for line in out.splitlines() if line.startswith("│")}
    assert "delivers" not in rows["RTX 3070"]
    assert "tf32 or float16  — less than" in rows["H100 with TF32"]
    assert (in_folder / "p/machines.png").stat().st_size > 10_000


def test_the_norm_of_the_difference_stands_beside_the_relative_one():
    a, b = np.random.default_rng(0).standard_normal((2, SIZES[0], SIZES[0]))
    verdict, arithmetic = verdict_of(Rounding(10)), Rounding(10)
    distance = np.linalg.norm(arithmetic.product(a, b) - a @ b)
    assert verdict.distances[SIZES[0]] == pytest.approx(distance)
    assert verdict.products[SIZES[0]] == pytest.approx(distance / np.linalg.norm(a @ b))


def _damaged(**changed):
    whole = report([verdict_of(Rounding(23))], {})
    (entry,) = whole["verdicts"]
    entry.update(changed)
    for key in [key for key, value in changed.items() if value is KeyError]:
        del entry[key]
    return json.dumps(whole)


@pytest.mark.slow
def test_a_file_counts_once(kfx, in_folder):
    (in_folder / "new.json").write_text(json.dumps({"machine": "a", **report([verdict_of(Rounding(23))], {})}))
    code, out, err = kfx("precision", "new.json", "new.json", "--output", "p")
    assert code == 0, err
    assert sum(line.startswith("│") for line in out.splitlines()) == 1
    assert len(error_against_size(precision.read([in_folder / "new.json"])).axes) == 2


@pytest.mark.parametrize(
    "text",
    [
        *("", "3", "{}", '{"switches": {}, "verdicts": [1]}', '{"switches": {}, "verdicts": []}', None),
        *(_damaged(products={}), _damaged(products=[1, 2]), _damaged(products={"100": None}), _damaged(distances=None)),
        *(_damaged(products={"a": 1.0}), _damaged(verdict=None)),
        *(_damaged(keeps_promise=KeyError), _damaged(conv2d_7x7=KeyError), _damaged(distances=KeyError)),
    ],
)
def test_another_file_is_no_measurement(kfx, in_folder, text):
    if text is not None:
        (in_folder / "x.json").write_text(text)
    code, _, err = kfx("precision", "x.json")
    assert code == 1
    assert err.startswith("kfx: x.json: is not a precision.json of kfx")
    assert len(err.strip().splitlines()) == 1


def test_kernel_check(kfx, in_folder):
    words = ["kernel_check=true", "evaluation.n_interpolation=[20,40]", "figures=true", "hydra.run.dir=r"]
    code, *_ = kfx("run", *SMALL, *words)
    assert code == 0
    import pandas as pd

    table = pd.read_csv(in_folder / "r/kernel_check.csv")
    assert len(table) == 4 * max(1, 1 + torch.cuda.device_count())
    by_dtype = table.groupby("dtype")["norm_of_difference"].max()
    assert by_dtype["float64"] < 1e-12 < by_dtype["float32"] < 1e-3
    assert table["accuracy"].between(0, 1).all()
    assert (in_folder / "r/figures/kernel_check.png").exists()


@pytest.mark.parametrize("selection", ["fixed", "leave_one_out"])
def test_a_kernel_check_has_the_accuracy_of_the_run(kfx, in_folder, selection):
    import pandas as pd

    words = ["kernel_check=true", "regularization.value=10", f"regularization.selection={selection}"]
    assert kfx("run", *SMALL, *words, "evaluation.n_interpolation=[40]", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    own = run.evaluation.query("kernel == 'trained' and metric == 'accuracy'")["value"].iloc[-1]
    table = pd.read_csv(in_folder / "r/kernel_check.csv").query("dtype == 'float64' and device == 'cpu'")
    assert table["accuracy"].item() == pytest.approx(own)
