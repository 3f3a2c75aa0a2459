"""Long-term statistics of forecasts, beside independent computations of them, and their pictures."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.integrate import solve_ivp
from scipy.spatial.distance import cdist, directed_hausdorff, euclidean
from scipy.stats import entropy
from sklearn.neighbors import KernelDensity

from kfx import load_run, plots
from kfx.data import dynamics
from kfx.data.backtest import Backtest
from kfx.data.windows import Trajectory, Windows
from kfx.evaluation import attractors
from kfx.kernels import ARD, RationalQuadratic
from kfx.numerics import point_sets
from kfx.numerics.regularization import Regularization
from kfx.optimizers.backtest_gradient import error_and_gradient
from kfx.optimizers.backtest_scores import HAUSDORFF

RNG = np.random.default_rng(0)
FEW = ("optimizer=none", "figures=false", "device.precision_check=off", "hydra.run.dir=r", "dataset=dynamics")
LONG = ("evaluation=rollout", "evaluation.starts=1", "evaluation.horizon=20", "evaluation.attractor_steps=300")


@pytest.mark.parametrize("d", [1, 3, 6])
def test_hausdorff_distances_are_those_of_all_pairs(d):
    a, b = RNG.normal(size=(70, d)), RNG.normal(size=(50, d)) + 0.5
    expected = max(directed_hausdorff(a, b)[0], directed_hausdorff(b, a)[0])
    assert point_sets.hausdorff(a, b) == pytest.approx(expected, rel=1e-12)
    squares = cdist(a, b, "sqeuclidean")
    mean = (squares.min(axis=0).mean() + squares.min(axis=1).mean()) / 2
    assert point_sets.modified_hausdorff(a, b) == pytest.approx(mean, rel=1e-12)
    assert point_sets.modified_hausdorff(b, a) == pytest.approx(mean, rel=1e-12)


@pytest.mark.parametrize("d", [1, 2, 3])
def test_divergence_of_few_coordinates_is_the_entropy_of_bins(d):
    truth, forecast = RNG.normal(size=(900, d)), RNG.normal(size=(800, d)) * 0.5
    forecast = forecast[(abs(forecast) < abs(truth).max(axis=0) * 0.9).all(axis=1)]
    counts = []
    for points in (truth, forecast):
        cells: dict[tuple[int, ...], int] = {}
        low = truth.min(axis=0) - 0.1 * truth.std(axis=0)
        width = (truth.max(axis=0) + 0.1 * truth.std(axis=0) - low) / 30
        for point in points:
            cell = tuple(int(i) for i in (point - low) / width)
            cells[cell] = cells.get(cell, 0) + 1
        counts.append(cells)
    every = sorted(set().union(*counts))
    rest = [0.0] * (30**d - len(every))
    p, q = (np.array([cells.get(cell, 0) for cell in every] + rest) + 1e-5 for cells in counts)
    assert attractors.state_space_divergence(truth, forecast) == pytest.approx(entropy(p, q), rel=1e-9)
    assert attractors.state_space_divergence(truth, truth) == 0


def test_points_outside_the_bins_are_no_points_of_the_attractor():
    truth = RNG.uniform(size=(500, 2))
    with_some = np.concatenate([truth, truth + 100])
    assert attractors.state_space_divergence(truth, with_some) == pytest.approx(np.log(2), abs=1e-3)
    assert attractors.state_space_divergence(truth, truth + 100) > 10


def test_divergence_of_many_coordinates_is_that_of_densities():
    truth, forecast = RNG.normal(size=(400, 5)), RNG.normal(size=(300, 5)) + 1
    rng = np.random.default_rng(1)
    drawn = truth[rng.integers(400, size=20_000)] + rng.normal(size=(20_000, 5))
    p, q = (KernelDensity(bandwidth=1.0).fit(each).score_samples(drawn) for each in (truth, forecast))
    spread = (p - q).std() / np.sqrt(1000)
    assert attractors.state_space_divergence(truth, forecast) == pytest.approx((p - q).mean(), abs=4 * spread)
    assert attractors.state_space_divergence(truth, truth) == 0


def test_distance_of_spectra_is_hellingers():
    truths, forecasts = RNG.normal(size=(2, 600, 3)), np.cumsum(RNG.normal(size=(2, 600, 3)), axis=1)
    expected = []
    for c in range(3):
        spectra = []
        for runs in (truths, forecasts):
            power = sum(abs(np.fft.fft(run - run.mean())[:301]) ** 2 for run in runs[:, :, c])
            weights = np.exp(-0.5 * (np.arange(-5, 6) / 1.2) ** 2)  # 4 deviations of 0.002 · 600 frequencies
            smooth = np.convolve(np.pad(power, 5, mode="symmetric"), weights / weights.sum(), "valid")
            spectra.append(np.sqrt(smooth / smooth.sum()))
        expected.append(euclidean(*spectra) / np.sqrt(2))
    assert attractors.spectral_distance(truths, forecasts) == pytest.approx(np.mean(expected), rel=1e-9)
    assert attractors.spectral_distance(truths, truths * 3 + 5) == pytest.approx(0, abs=1e-6)
    assert attractors.spectral_distance(truths, np.ones_like(truths)) == 1


def test_one_coordinate_is_seen_at_three_times():
    runs = np.arange(20.0).reshape(2, 10, 1)
    found = point_sets.in_state_space(runs, 3).reshape(-1, 3)
    assert found.tolist() == [[i, i + 3, i + 6] for i in (0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0)]
    wave = np.sin(np.arange(400) * 2 * np.pi / 100)
    assert point_sets.delay_of(wave, 400) == pytest.approx(np.arccos(1 / np.e) * 100 / 2 / np.pi, abs=2)
    assert point_sets.delay_of(wave, 41) == 10


def test_the_slope_of_a_modified_distance_is_that_of_differences():
    a, b = RNG.normal(size=(12, 2)), RNG.normal(size=(9, 2))
    value, slope = point_sets.modified_hausdorff_and_slope(a, b)
    assert value == point_sets.modified_hausdorff(a, b)
    for at in np.ndindex(a.shape):
        step = np.zeros_like(a)
        step[at] = 1e-6
        ends = point_sets.modified_hausdorff(a + step, b), point_sets.modified_hausdorff(a - step, b)
        assert slope[at] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize("coordinates", [1, 3])
@pytest.mark.parametrize("scale", ["centered", "absolute"])
def test_gradients_of_a_distance_of_attractors_agree_with_differences(coordinates, scale):
    whole = dynamics.trajectory("lorenz", 160, None, np.random.default_rng(0))
    series = Trajectory(whole.time, whole.values[:, :coordinates].copy())
    series.values[70, 0] = np.nan
    test = Backtest.of(Windows(3), [series], 25)
    kernel = ARD(RationalQuadratic(0.8), np.linspace(2.0, 4.0, test.x.shape[1]))
    shift = Regularization(1e-4, scale)

    def error(vector):
        return test.errors(kernel.with_flat(vector), [shift], HAUSDORFF.errors)[0]

    found, gradient = error_and_gradient(test, kernel, shift, HAUSDORFF)
    assert found == pytest.approx(error(kernel.flat), rel=1e-7)
    steps = 1e-6 * np.eye(len(kernel.flat))
    differences = [(error(kernel.flat + step) - error(kernel.flat - step)) / 2e-6 for step in steps]
    np.testing.assert_allclose(gradient, differences, rtol=2e-3, atol=2e-3 * np.abs(differences).max())


def test_training_on_the_distance_of_attractors_lowers_it(kfx):
    words = ("objective=hausdorff", "optimizer=adam", "optimizer.learning_rate=0.1", "optimizer.space=log")
    sizes = ("dataset.n_train=150", "dataset.n_test=60", "dataset.lags=1", "kernel.sigma=1.5", "optimizer.iterations=8")
    code, _, err = kfx("run", *FEW[1:], *words, *sizes, "optimizer.fall_back=false")
    assert code == 0, err
    values = load_run("r").trace["objective"]
    assert values.iloc[-1] < 0.3 * values.iloc[0]
    code, _, err = kfx("run", *FEW[1:3], "dataset=dynamics", *words, *sizes, "outputs.kernels=separate")
    assert code == 2
    assert "does not go with objective=hausdorff" in err


def henon_step(x):
    return np.stack([1 - 1.4 * x[:, 0] ** 2 + x[:, 1], 0.3 * x[:, 0]], axis=1)


def lorenz_step(x):
    flow = dynamics.FLOWS["lorenz"].field
    return np.stack([solve_ivp(flow, (0, 0.1), each, rtol=1e-8, atol=1e-8).y[:, -1] for each in x])


@pytest.mark.parametrize(
    ("step", "start", "unit", "count", "expected", "near"),
    [
        (lambda x: 4 * x * (1 - x), [0.3], 1.0, 3000, np.log(2), 0.02),
        (henon_step, [0.1, 0.1], 1.0, 3000, 0.419, 0.02),
        (lorenz_step, [1.0, 1.0, 20.0], 0.1, 2000, 0.9056, 0.05),
        (lambda x: 0.5 * x, [1.0], 2.0, 40, np.log(0.5) / 2, 1e-6),
    ],
    ids=["logistic", "henon", "lorenz", "contraction"],
)  # fmt: skip
def test_lyapunov_exponents_are_the_known_ones(step, start, unit, count, expected, near):
    size = len(start)
    windows = Windows(1, is_increment=False, mean=np.full(size, 0.2), scale=np.full(size, 3.0))
    time = np.arange(count + 1)[None] * unit
    runs, exponents = attractors.free_runs(
        windows, lambda z: windows.scaled(step(z * 3.0 + 0.2)), np.array(start)[None, None], time, count, windows.scale
    )
    assert exponents[0] == pytest.approx(expected, abs=near)
    x = np.array([start])
    for found in runs[0, :20]:
        x = step(x)
        np.testing.assert_allclose(found, x[0], rtol=1e-4, atol=1e-4)


def test_free_runs_of_windows_with_lags_are_their_forecasts():
    series = Trajectory(np.arange(60.0), np.sin(np.arange(60.0))[:, None])
    windows = Windows(4, stride=2, horizon=2).fitted([series])
    predict = lambda z: 0.3 * np.sin(z[:, :1] - z[:, -1:])  # noqa: E731
    history = series.values[None, : windows.reach]
    time = np.arange(windows.reach + 31)[None] * 1.0
    runs, _ = attractors.free_runs(windows, predict, history, time, 31, windows.scale)
    np.testing.assert_allclose(runs, windows.forecast(predict, history, time, 31), rtol=1e-12)


def test_a_run_records_its_free_runs_and_their_statistics(kfx):
    code, _, err = kfx("run", *FEW, *LONG, "dataset.n_train=400", "dataset.n_test=300", "dataset.lags=1")
    assert code == 0, err
    run = load_run("r")
    found = run.evaluation.query("kernel == 'trained'").set_index("metric")["value"]
    rows = pd.read_csv("r/attractor.csv").query("kernel == 'trained'")
    assert rows["step"].tolist() == list(range(1, 301))
    data = dynamics.trajectory("lorenz", 700, None, np.random.default_rng(0))
    truth, forecast = (rows[[f"{kind}.{c}" for c in "xyz"]].to_numpy() for kind in ("truth", "forecast"))
    np.testing.assert_allclose(truth, data.values[400:])
    scale = data.values[:400].std(axis=0)
    distance = cdist(truth / scale, forecast / scale)
    assert found["hausdorff"] == pytest.approx(max(distance.min(axis=0).max(), distance.min(axis=1).max()))
    squares = (distance**2).min(axis=0).mean() / 2 + (distance**2).min(axis=1).mean() / 2
    assert found["modified_hausdorff"] == pytest.approx(squares)
    assert found["modified_hausdorff"] < 0.05
    assert 0 < found["spectral_distance"] < 0.3
    assert found["lyapunov_exponent"] == pytest.approx(0.9, abs=0.6)
    first = pd.read_csv("r/forecasts.csv").query("kernel == 'trained' and origin == 0")
    np.testing.assert_allclose(first["forecast.x"], rows["forecast.x"][:20], rtol=1e-6)
    assert run.metrics["better"]["hausdorff"] == "smaller"
    drawn = plots.one(run, "long_term")
    assert [len(axes.lines) for axes in drawn.axes] == [1, 1, 2]


def test_without_attractor_steps_nothing_is_added(kfx):
    code, _, err = kfx("run", *FEW, *LONG[:3], "dataset.n_train=150", "dataset.n_test=60", "dataset.lags=2")
    assert code == 0, err
    assert not set(load_run("r").evaluation["metric"]) & set(attractors.NAMES)
    assert "attractor.csv" not in {path.name for path in load_run("r").directory.iterdir()}


def test_a_free_run_that_leaves_the_range_is_far_and_has_no_exponent(kfx, in_folder):
    t = np.arange(350)
    pd.DataFrame({"x": 1.02**t * np.sin(t / 5)}).to_csv("growing.csv", index=False)
    words = ("dataset=series", "dataset.path=growing.csv", "dataset.target=next", "dataset.lags=2", "kernel=linear")
    sizes = (
        "dataset.n_train=50",
        "dataset.n_test=300",
        "regularization.value=1e-12",
        "evaluation.n_interpolation=null",
    )
    code, _, err = kfx("run", *FEW[:-1], *LONG, *words, *sizes)
    assert code == 0, err
    found = load_run("r").evaluation.query("kernel == 'trained'").set_index("metric")["value"]
    rows = pd.read_csv("r/attractor.csv").filter(like="forecast.")
    assert found["hausdorff"] > 20
    assert np.isnan(found["lyapunov_exponent"])
    assert np.isfinite(found[list(attractors.NAMES[:4])]).all()
    assert np.isfinite(rows).all(axis=None)


def test_a_kernel_for_each_coordinate_runs_free_too(kfx):
    alike = (
        "dataset.n_train=200",
        "dataset.n_test=100",
        "dataset.lags=1",
        "kernel.sigma=2",
        "regularization.value=1e-7",
    )
    found = []
    for kernels in ("shared", "separate"):
        words = (f"outputs.kernels={kernels}", "evaluation.attractor_steps=100", f"hydra.run.dir={kernels}")
        words += ("regularization.value=1e-7",)
        code, _, err = kfx("run", *FEW, *LONG, *alike, *words)
        assert code == 0, err
        found.append(load_run(kernels).evaluation.query("kernel == 'trained'").set_index("metric")["value"])
    for name in attractors.NAMES:
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-2), name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["evaluation.attractor_steps=500"], "evaluation.attractor_steps=500: only 300 steps follow the training"),
        (["dataset.gaps=3"], "evaluation.attractor_steps=300: spectra need steps of even length"),
        (["evaluation.attractor_steps=10"], "evaluation.attractor_steps=10: expected"),
    ],
)
def test_free_runs_that_have_no_meaning_are_refused(kfx, words, expected):
    code, _, err = kfx("run", *FEW, *LONG, "dataset.n_train=400", "dataset.n_test=300", "dataset.lags=1", *words)
    assert code == 2
    assert expected in err


# ---- the comparison with HMKF


@pytest.fixture(scope="module")
def script():
    path = Path(__file__).parent.parent / "scripts/compare_attractors.py"
    spec = importlib.util.spec_from_file_location("compare_attractors", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_rows_compare_forecasts_from_test_points_with_the_test_part(script):
    t = np.arange(3500) * 2 * np.pi / 100.3
    series = np.stack([3 + np.sin(t), 5 * np.cos(t)], axis=1)
    z = (series - series[:1200].mean(axis=0)) / series[:1200].std(axis=0)
    known = script.row("circle", "the known points", series)
    squares = cdist(z[1200::2], z[:1200:2], "sqeuclidean")
    expected = (squares.min(axis=0).mean() + squares.min(axis=1).mean()) / 2
    assert known["short.modified_hausdorff"] == pytest.approx(expected)
    assert known["free.hausdorff"] == pytest.approx(directed_hausdorff(z[1200:], z[:1200])[0], rel=0.2)
    found = script.row("circle", "nothing chosen", series)
    runs = script.runs_of(script.nothing_chosen(series[:1200]), series)
    assert runs["short"].shape == (40, 50, 2)
    np.testing.assert_allclose(runs["short"][0], series[1201:1251], atol=0.05)
    np.testing.assert_allclose(runs["short"][-1, 0], series[-1], atol=0.5)  # half a step on
    assert found["short.modified_hausdorff"] < 0.01
    assert found["free.spectral_distance"] < 0.1
    assert set(found) == set(script.COLUMNS)


def test_published_rows_are_those_in_scope(script, tmp_path):
    lines = [
        "System,Status,HD,Active,REG,Time",
        "Lorenz,SUCCESS,0.02,3,0.3,125.2",
        "IkedaDelay,EXPLODED,64.4,20,0.1,206",
    ]
    (tmp_path / "results.csv").write_text("\n".join(lines))
    (row,) = script.published(tmp_path / "results.csv")
    assert row["system"] == "Lorenz"
    assert row["short.modified_hausdorff"] == 0.02
    assert row["seconds"] == 125.2


def test_the_page_s_table_has_a_line_for_each_method(script):
    lines = script.as_markdown().splitlines()
    assert len(lines) == 2 + script.table()["method"].nunique()
    theirs = next(line for line in lines if line.startswith("| HMKF, published |"))
    assert theirs.split(" | ")[1:5] == ["130", "0.323", "0.323", "0"]
