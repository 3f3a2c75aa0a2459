"""Studies: runs that answer a question together, their table and their picture."""

import importlib
import re
from types import SimpleNamespace

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib.colors import to_rgb
from omegaconf import OmegaConf

from kfx import load_run, version
from kfx.config import catalogue, registry
from kfx.kernels import CNNGP
from kfx.kernels.cnngp.architectures import architecture
from kfx.outcomes import ConfigError
from kfx.papers import studies
from kfx.papers.pictures import landscape, over_iterations, over_points, scaling, slope
from kfx.papers.tables import made_on
from kfx.plots.style import COLOURS
from kfx.report.measured import SHARES

WORDS = ("kernel=rbf", "dataset.n_train=60", "dataset.n_test=20", "sampler.batch_size=30", "optimizer.iterations=6")


pytestmark = pytest.mark.usefixtures("own_registry")


MANY = ("batch_size", "runtime", "memory")
"""Studies of many runs."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in MANY else name for name in studies.names()]
)
def test_every_study_composes_and_says_what_it_is(name):
    read = studies.read(name)
    assert "20" in catalogue.description("study", name)  # the paper's year
    if read.cells:
        module = importlib.import_module(f"kfx.criteria.{read.cells}")
        assert len(module.cells(**read.settings)) >= len(module.cells(**studies.with_settings(read, smoke=True))) > 0
        return
    assert len(read.runs) > 1
    assert all(known.source for known in read.published)
    assert read.columns


def test_a_recorded_table_says_when_and_where_it_was_made(kfx, in_folder):
    assert kfx("run", "optimizer=none", "figures=false", "hydra.run.dir=r")[0] == 0
    table = studies.dated(pd.DataFrame({"run": ["one"], "mse": [1.0]}), [made_on(in_folder / "r")])
    assert list(table) == ["run", "mse", "date", "kfx", "machine"]
    assert table["kfx"].item() == version.__version__
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", table["date"].item())
    assert "float64" in table["machine"].item()
    code, _, err = kfx("study", "momentum", "--record", "--smoke")
    assert (code, "--record: keeps the study's own settings" in err) == (2, True)


@pytest.mark.slow
def test_a_study_has_a_table_and_a_picture(kfx, in_folder):
    words = ["momentum", "--smoke", "--set", "seed=3", "--set", "device.precision_check=off"]
    code, out, err = kfx("study", *words, "--jobs", "2")
    assert code == 0, err
    folder = in_folder / "runs/study/momentum,seed=3,device.precision_check=off,smoke"
    table = pd.read_csv(folder / "table.csv")
    assert table["run"].to_list() == ["SGD", "Nesterov momentum"]
    assert table["sigma"].between(0.1, 10).all()
    assert matplotlib.image.imread(folder / "picture.png").min() < 1
    run = load_run(folder / "SGD" / "run")
    assert run.config.seed == 3
    assert "Nesterov momentum" in out
    again = kfx("study", *words)
    assert again[0] == 0  # nothing is run twice
    assert load_run(run.directory).metrics == run.metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sample_proportion", "three_variants", "memory"])
def test_each_kind_of_picture_is_drawn(kfx, in_folder, name):
    code, _, err = kfx("study", name, "--smoke", "--jobs", "2")
    if code != 0 and "mnist" in err:
        pytest.skip("MNIST is not here")
    assert code == 0, err
    shown = matplotlib.image.imread(in_folder / "runs" / "study" / f"{name},smoke" / "picture.png")[..., :3]
    colours = {tuple(pixel) for pixel in (shown.reshape(-1, 3) * 255).round().astype(int)}
    assert {tuple(round(255 * part) for part in to_rgb(colour)) for colour in COLOURS[:3]} <= colours, "a curve each"


def ran(kfx, **alternatives):
    """A run for each label, of its words."""
    for label, words in alternatives.items():
        code, _, err = kfx("run", *WORDS, *words, f"hydra.run.dir={label}")
        assert code == 0, err
    return {label: load_run(label) for label in alternatives}


def test_a_landscape_has_a_curve_a_band_and_a_star_for_each_run(kfx):
    grid = ["optimizer=grid", "optimizer.points=4", "optimizer.iterations=8", "optimizer.gradient=true"]
    runs = ran(kfx, few=[*grid, "sampler.sample_proportion=0.25"], many=[*grid, "sampler.sample_proportion=0.75"])
    values, slopes = landscape(runs, "sigma", [], pd.DataFrame()).axes
    assert (values.get_ylabel(), slopes.get_xlabel()) == (r"$\rho$", r"$\sigma$")
    assert [line.get_label() for line in slopes.lines] == ["few", "many"]
    curves, stars = values.lines[::2], values.lines[1::2]
    for run, curve, star, band in zip(runs.values(), curves, stars, values.collections, strict=True):
        sweeps = run.trace.groupby("parameter.sigma")["objective"]
        np.testing.assert_allclose(curve.get_ydata(), sweeps.mean())
        assert (star.get_xdata()[0], star.get_ydata()[0]) == (sweeps.mean().idxmin(), sweeps.mean().min())
        edges = band.get_paths()[0].vertices[:, 1]
        assert edges.max() == pytest.approx((sweeps.mean() + sweeps.std()).max())


@pytest.mark.slow
def test_kernels_are_drawn_over_points_before_and_after(kfx):
    common = ["evaluation.n_interpolation=[10,30]", "evaluation.random_kernels=2"]
    runs = ran(kfx, adam=common, sgd=[*common, "optimizer=sgd"], start=[*common, "optimizer=none"])
    (axes,) = over_points(runs, "mse", [], pd.DataFrame()).axes
    drawn = {line.get_label(): line.get_ydata() for line in axes.lines}
    assert set(drawn) == {"before training", "adam", "sgd", "start"}
    for label, kernel in (("before training", "initial"), ("adam", "trained"), ("sgd", "trained")):
        rows = runs[label if label in runs else "adam"].evaluation.query(f"metric == 'mse' and kernel == '{kernel}'")
        np.testing.assert_allclose(drawn[label], rows.groupby("n_interpolation")["value"].mean())
    assert [band.get_label() for band in axes.collections] == [f"2 random kernels, {label}" for label in runs]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("interpolation points $N_I$", "test mse")


@pytest.mark.parametrize("relu", ["operations", "one_node"])
def test_the_kept_graph_is_the_kernel_that_it_is_compared_with(relu):
    studies.read("memory")
    common = {"trainable": None, "bounds": {}}
    plain = registry.OPTIONS["kernel"]["kept_graph"](relu=relu).make((28, 28), **common)
    kernel = CNNGP(architecture("simple", (28, 28)), 1.0, 1.0)
    x = torch.as_tensor(np.random.default_rng(0).uniform(size=(6, 1, 28, 28)))
    cotangent = torch.as_tensor(np.random.default_rng(1).normal(size=(6, 6)))
    cotangent = cotangent + cotangent.T
    gram, pull = plain.pullback(x)
    torch.testing.assert_close(gram, kernel.gram(x), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(plain.gram(x), gram)
    assert pull(cotangent)[0] == pytest.approx(kernel.pullback(x)[1](cotangent)[0], rel=1e-6)


def test_what_a_paper_prints_stands_in_the_table(kfx, in_folder):
    assert kfx("run", *WORDS, "hydra.run.dir=r", "figures=false")[0] == 0
    known = studies.Known("a", "mse", 2.5, "a paper")
    asked = studies.Study(runs={"a": [], "b": []}, columns=["mse"], published=[known])
    there = {"a": in_folder / "r", "b": in_folder / "r"}
    table = studies.table(asked, there)
    assert list(table) == ["run", "mse", "mse, published"]
    assert table["mse, published"].to_list()[0] == 2.5
    assert np.isnan(table["mse, published"].to_list()[1])
    assert list(studies.table(asked, there, is_as_published=False)) == ["run", "mse"]


def test_curves_are_named_before_the_last_comma():
    runs = {f"{kind}, N = {n}": SimpleNamespace(config=OmegaConf.create({"n": n})) for kind in "ab" for n in (1, 2, 4)}
    values = [1.0, 2, 4, 1, 4, 16]
    printed = [np.nan] * 5 + [20.0]
    frame = pd.DataFrame({"run": list(runs), "MB": values, "MB, published": printed})
    (axes,) = scaling(runs, "n", ["MB"], frame).axes
    assert [line.get_label() for line in axes.lines] == ["a: exponent 1.00", "b: exponent 2.00", "published"]
    np.testing.assert_array_equal(axes.lines[1].get_ydata(), [1, 4, 16])


def test_a_picture_of_what_no_run_records_is_one_line(kfx, in_folder):
    assert kfx("run", *WORDS, "hydra.run.dir=r", "figures=false")[0] == 0
    for draw in (landscape, over_iterations):
        with pytest.raises(ConfigError, match="x=sigmaa: a records no such parameter"):
            draw({"a": load_run("r")}, "sigmaa", [], pd.DataFrame())


def test_studies_are_listed(kfx):
    code, out, _ = kfx("study")
    assert code == 0
    assert len(out.splitlines()) == len(studies.names())


def test_bad_words_are_one_line(kfx, in_folder):
    for words, said in (
        (("momentun",), "momentun: unknown study; it takes altered_rho"),
        (("momentum", "--jobs", "0"), "--jobs 0: expected a whole number >= 1"),
        (("momentum", "--set", "kernel.sigam=2"), "kernel.sigam: unknown key"),
    ):
        code, _, err = kfx("study", *words)
        assert code == 2
        assert said in err
        assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("runs: {a: [kernel=nothing]}\ncolumns: [mse]", "kernel=nothing: unknown option"),
        ("runs: [1, 2]\ncolumns: [mse]", "expected a name and a list of words"),
        ("", "expected runs and columns"),
        ("runs: {a b: [], a_b: []}\ncolumns: [mse]", "a b and a_b: would share a folder"),
        ("runs: {a: [hydra.run.dir=x]}\ncolumns: [mse]", "hydra.run.dir=x: where a run goes"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npicture: landscape", "picture=landscape: needs x"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npicture: scaling\nx: no.thing", "x=no.thing: is no key with a"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npicture: film", "picture=film"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\ncolour: red", "colour: unknown key"),
        ("runs: {a: [", "study.yaml"),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\nplugins: [none.py]", r"none.py: expected a Python file"),
        (
            "runs: {a: [kernel=rbf]}\ncolumns: [mse]\npublished: [{run: a, column: mae, value: 1, source: s}]",
            "a, mae: is no run and col",
        ),
        (
            "runs: {a: [kernel=rbf]}\ncolumns: [mse]\npublished: [{run: a, value: big}]",
            r"published\[0\].value=big: expected a number",
        ),
        ("runs: {a: [kernel=rbf]}\ncolumns: [mse]\npublished: 3", "published=3: expected a list of"),
    ],
)
def test_a_file_that_is_not_understood_is_one_line(tmp_path, monkeypatch, text, said):
    (tmp_path / "study.yaml").write_text(text)
    monkeypatch.setattr(studies, "names", lambda: ["study"])
    monkeypatch.setattr(catalogue, "file_of", lambda group, name: tmp_path / "study.yaml")
    with pytest.raises(ConfigError, match=said):
        studies.jobs(studies.read("study"), tmp_path)


def test_the_trace_says_where_the_time_went(kfx, in_folder):
    assert kfx("run", *WORDS, "optimizer=finite_difference", "hydra.run.dir=r", "figures=false")[0] == 0
    trace = load_run("r").trace
    parts = trace[[f"diagnostic.{name}" for name in SHARES.values()]]
    assert (parts.iloc[:, 0] > 0).all()
    assert parts.to_numpy().sum() <= trace["seconds"].iloc[-1]


def test_exponents_are_of_the_larger_half():
    x = np.array([100.0, 200, 400, 800, 1600])
    assert slope(x, 1e-3 * np.maximum(x / 400, 1) ** 3) == pytest.approx(3)
    assert np.isnan(slope(x, np.full(5, np.nan)))
