"""How data are prepared: fitted steps, transformed targets, and what refitted folds choose."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.preprocessing import PowerTransformer

from kfx import KernelFlowClassifier, KernelFlowRegressor, load_run
from kfx.config.choices import STEPS, WARPS
from kfx.data.dataset import Dataset, preprocess, with_targets
from kfx.data.steps import StepSettings, fitted
from kfx.data.warps import Warp
from kfx.estimators.recorded import Model
from kfx.numerics import calibration
from kfx.outcomes import DataError, Event, NumericalError
from kfx.running import refitted

ALL = [step for step in STEPS if step != "normalize_channels"]


def lognormal(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points with heavy tails, and positive, skewed targets that are smooth in the logarithms."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 3))
    return np.exp(2 * z), np.exp(np.sin(z[:, 0]) + 0.8 * z[:, 1] + 0.1 * rng.normal(size=n))


def spectra(n: int = 90, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Smooth spectra whose second derivative tells the target, under a strong baseline."""
    rng, at = np.random.default_rng(seed), np.linspace(0, 1, 60)
    height, base = rng.uniform(size=n), rng.normal(size=(n, 3)) * 20
    peaks = np.exp(-((at - 0.5) ** 2) / 0.002)
    return height[:, None] * peaks + base[:, :1] + base[:, 1:2] * at + base[:, 2:] * 0.1, height


# ---- steps


@pytest.mark.parametrize("step", ALL)
def test_other_points_are_mapped_as_training_points_one_by_one(step):
    x = lognormal(60)[0] @ np.random.default_rng(1).normal(size=(3, 12))
    made, maps = fitted(x, [step, "normalize"])
    moved = x
    for each in maps:
        moved = each(moved)
    np.testing.assert_array_equal(moved, made)
    for rows in (slice(3, 4), slice(None, None, -7)):
        part = x[rows]
        for each in maps:
            part = each(part)
        np.testing.assert_allclose(part, made[rows], rtol=1e-12, atol=1e-12)


def test_normal_scores_are_those_of_ranks_and_stay_within_them():
    rng = np.random.default_rng(0)
    x = np.exp(rng.normal(size=(99, 1)) * 3)
    made, (scores,) = fitted(x, ["quantile"])
    np.testing.assert_allclose(made[:, 0], stats.norm.ppf(stats.rankdata(x[:, 0]) / 100))
    assert scores(np.array([[1e30], [-1.0]])).ravel().tolist() == [made.max(), made.min()]
    codes = rng.integers(0, 4, size=(99, 1)).astype(float)
    np.testing.assert_array_equal(fitted(codes, ["quantile"])[0], codes)


def test_the_power_transform_is_that_of_scikit_learn():
    x = lognormal(150)[0]
    unit = (x - x.mean(axis=0)) / x.std(axis=0)
    expected = PowerTransformer(standardize=False).fit_transform(unit)
    np.testing.assert_allclose(fitted(x, ["yeo_johnson"])[0], expected, rtol=1e-2, atol=1e-2)


def test_steps_of_spectra_are_as_defined():
    x, _ = spectra()
    snv = fitted(x, ["snv"])[0]
    np.testing.assert_allclose(snv.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(snv.std(axis=1), 1)
    mean, corrected = x.mean(axis=0), fitted(x, ["msc"])[0]
    for row, own in zip(x[:5], corrected[:5], strict=True):
        b, a = np.polyfit(mean, row, 1)
        np.testing.assert_allclose(own, (row - a) / b, rtol=1e-8)
    at = np.arange(30.0)
    parabolas = np.stack([2 * at**2 + 3 * at, at**2 - at + 4])
    np.testing.assert_allclose(fitted(parabolas, ["second_derivative"])[0], [[4] * 30, [2] * 30], atol=1e-9)
    slopes = fitted(parabolas, ["derivative"], StepSettings(window=7))[0]
    np.testing.assert_allclose(slopes, np.stack([4 * at + 3, 2 * at - 1]), atol=1e-9)


@pytest.mark.parametrize(
    ("steps", "own", "said"),
    [(["snv"], StepSettings(), "no spectra"), (["derivative"], StepSettings(window=15), "derivative_window=15")],
)
def test_points_that_are_no_spectra_are_refused(steps, own, said):
    with pytest.raises(DataError, match=said):
        fitted(np.ones((5, 3 if own.window is None else 12)), steps, own)


# ---- transformed targets


@pytest.mark.parametrize("how", WARPS)
def test_transforms_have_inverses_and_slopes(how):
    y = lognormal()[1][:, None] * 7 - (0 if how == "log" else 3)
    warp = Warp.of(how, y)
    z = warp(y)
    np.testing.assert_allclose(warp.inverse(z), y, rtol=1e-9)
    step = 1e-6 * np.abs(y)
    np.testing.assert_allclose(np.exp(warp.log_slope(y)), (warp(y + step) - warp(y - step)) / (2 * step), rtol=1e-5)


@pytest.mark.parametrize("how", WARPS)
def test_moments_intervals_and_scores_are_those_of_draws(how):
    x, y = lognormal()
    rng, target = np.random.default_rng(0), y[:, None] * 7
    data = with_targets(Dataset("d", x, target, x[:4], target[:4]), how)
    mean, deviation = np.array([[0.3], [-1.0], [0.0], [0.8]]), np.array([[0.2], [0.1], [0.3], [0.05]])
    draws = data.in_units(mean + deviation * rng.normal(size=(4, 200_000)))
    moments = data.moments(mean, deviation)
    np.testing.assert_allclose(moments[0][:, 0], draws.mean(axis=1), rtol=5e-3)
    np.testing.assert_allclose(moments[1][:, 0], draws.std(axis=1), rtol=2e-2)
    ends = np.concatenate(data.interval(mean, deviation, 0.95), axis=1)
    np.testing.assert_allclose(ends, np.quantile(draws, [0.025, 0.975], axis=1).T, rtol=2e-2)
    levels = calibration.LEVELS
    quantiles = data.in_units(mean[..., None] + deviation[..., None] * stats.norm.ppf(levels))
    own = calibration.crps_of_quantiles(quantiles, levels, target[:4]).mean()
    half = draws[:, :100_000], draws[:, 100_000:]
    sampled = np.abs(draws - target[:4]).mean() - np.abs(half[0] - half[1]).mean() / 2
    assert own == pytest.approx(sampled, rel=2e-2)


def test_the_density_of_transformed_targets_is_that_of_the_lognormal(kfx, in_folder):
    x, y = lognormal(120)
    pd.DataFrame(np.log(x)).assign(target=y**0.3).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=target", "dataset.targets=log", "figures=false"]
    assert kfx("run", *words, "optimizer.iterations=30", "hydra.run.dir=r")[0] == 0
    run, found = load_run("r"), pd.read_csv("r/predictions.csv")
    own = found[found["kernel"] == "trained"]
    variance = (np.log(own["high"] / own["low"]) / 2 / stats.norm.ppf(0.975)) ** 2
    median = np.sqrt(own["high"] * own["low"])
    expected = -stats.lognorm.logpdf(own["target"], np.sqrt(variance), scale=median).mean()
    rows = run.evaluation.query("kernel == 'trained'").set_index("metric")["value"]
    assert rows["nlpd"] == pytest.approx(expected, rel=1e-6)
    np.testing.assert_array_equal(
        own["normal_score"].abs() < 1.959963984540054, own["target"].between(own["low"], own["high"])
    )
    assert rows["coverage_95"] == own["target"].between(own["low"], own["high"]).mean()
    assert rows["mse"] == pytest.approx(np.mean((own["target"] - own["prediction"]) ** 2), rel=1e-9)
    np.testing.assert_allclose(own["prediction"], median * np.exp(variance / 2), rtol=1e-3)
    assert kfx("predict", "r", "t.csv", "--output", "p.csv")[0] == 0
    again = pd.read_csv("p.csv")
    assert list(again.columns) == ["row", "prediction", "deviation", "low", "high"]
    assert np.isfinite(again.to_numpy()).all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dataset.targets=log"], "takes targets above 0"),
        (["dataset.targets=log", "evaluation.train_error=true"], "dataset.targets=log"),
        (["dataset.targets=yeo_johnson", "outputs.kernels=separate"], "dataset.targets=yeo_johnson"),
        (["dataset.targets=log", "evaluation.solver=conjugate_gradients"], "dataset.targets=log"),
    ],
)
def test_transforms_are_refused_where_they_have_no_meaning(kfx, in_folder, words, said):
    x, y = lognormal(40)
    pd.DataFrame(x).assign(target=y - (5 if "above" in said else 0)).to_csv("t.csv", index=False)
    common = ["dataset=table", "dataset.path=t.csv", "dataset.target=target", "figures=false"]
    code, _, err = kfx("run", *common, *words)
    assert code == 2, err
    assert said in err
    assert "Traceback" not in err


# ---- what refitted folds choose


def test_heavy_tails_and_skewed_targets_are_transformed_and_said(in_folder):
    x, y = lognormal(300)
    fitted_ = KernelFlowRegressor(random_state=1).fit(x[:200], y[:200])
    plain = KernelFlowRegressor(scale=["normalize"], targets="standardized", random_state=1).fit(x[:200], y[:200])
    errors = [np.mean((each.predict(x[200:]) - y[200:]) ** 2) for each in (fitted_, plain)]
    assert errors[0] < errors[1]
    assert any("quantile" in note and "log" in note for note in fitted_.remarks_)
    low, high = fitted_.predict_interval(x[200:])
    assert 0.85 <= np.mean((low <= y[200:]) & (y[200:] <= high)) <= 1
    assert (low > 0).all()


@pytest.mark.parametrize("seed", [3, 5])  # the first fold keeps its targets, or not
def test_folds_that_choose_differently_have_the_same_columns(kfx, in_folder, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, (60, 2))
    y = np.exp(0.9 * np.sin(2 * x[:, 0]) + 0.4 * rng.standard_normal(60))
    pd.DataFrame(x, columns=["a", "b"]).assign(y=y).to_csv("t.csv", index=False)
    words = ["evaluation=k_fold", "evaluation.folds=3", "optimizer.iterations=2", "evaluation.save_predictions=true"]
    words += ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "dataset.test=0.2"]
    code, _, err = kfx("run", *words, "hydra.run.dir=r")
    assert code == 0, err
    run = load_run("r")
    targets = [each["targets"] for each in run.metrics["preparation"]]
    assert set(targets) == {"log", "standardized"}
    errors = run.evaluation.query("kernel == 'trained'").pivot_table(index="repeat", columns="metric", values="value")
    predicted = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    assert np.isfinite(predicted.select_dtypes("number").to_numpy()).all()
    held = predicted["target"].between(predicted["low"], predicted["high"]).groupby(predicted["repeat"]).mean()
    np.testing.assert_array_equal(held, errors["coverage_95"])
    for fold, own in predicted.groupby("repeat"):
        assert np.mean((own["target"] - own["prediction"]) ** 2) == pytest.approx(errors.loc[fold, "mse"], rel=1e-9)
        if targets[fold] == "standardized":
            score = (own["target"] - own["prediction"]) / own["deviation"]
            np.testing.assert_allclose(own["normal_score"], score, rtol=1e-9)


def test_spectra_get_steps_of_their_own():
    x, y = spectra(150)
    found = [KernelFlowRegressor(scale=how).fit(x[:90], y[:90]) for how in ("auto", ["normalize"])]
    errors = [np.mean((each.predict(x[90:]) - y[90:]) ** 2) for each in found]
    assert errors[0] < errors[1] / 4
    assert any("derivative" in note or "snv" in note for note in found[0].remarks_)


def test_well_behaved_points_are_only_normalized():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(150, 3))
    remarks = KernelFlowRegressor().fit(x, np.sin(x[:, 0]) + x[:, 1]).remarks_
    assert not any("transform" in remark for remark in remarks)


def test_units_of_features_do_not_matter_to_estimators():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3))
    labels = x[:, 0] * x[:, 1] > 0
    units = np.array([1e-6, 1.0, 1e6])
    kernel = {"name": "matern", "nu": 2.5, "ard": False}
    own = KernelFlowClassifier(kernel).fit(x[:90], labels[:90])
    scaled = KernelFlowClassifier(kernel).fit(x[:90] * units, labels[:90])
    np.testing.assert_allclose(own.predict_proba(x[90:]), scaled.predict_proba(x[90:] * units), rtol=1e-6)
    raw = KernelFlowClassifier(kernel, scale=None).fit(x[:90] * units, labels[:90])
    assert own.score(x[90:], labels[90:]) > raw.score(x[90:] * units, labels[90:])


def test_a_run_records_what_was_chosen_and_predicts_with_it(kfx, in_folder):
    x, y = lognormal(200)
    pd.DataFrame(x).assign(target=y).to_csv("t.csv", index=False)
    pd.DataFrame(x[:5]).to_csv("new.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=target", "figures=false", "hydra.run.dir=r"]
    code, out, err = kfx("run", *words, "optimizer.iterations=20")
    assert code == 0, err
    (own,) = json.loads(Path("r/metrics.json").read_text())["preparation"]
    assert own["preprocess"] == ["quantile", "normalize"]
    assert own["targets"] == "log"
    assert len(own["losses"]) == 4
    assert "quantile" in out + err
    predicted = load_run("r").predict(pd.read_csv("new.csv"))
    run = pd.read_csv("r/predictions.csv")
    frame = pd.read_csv("t.csv")
    held = run[run["kernel"] == "trained"]
    again = load_run("r").predict(frame[np.isin(frame["target"], held["target"])].drop(columns="target"))
    np.testing.assert_allclose(np.sort(again["prediction"]), np.sort(held["prediction"]), rtol=1e-9)
    assert list(predicted.columns) == ["prediction", "deviation", "low", "high"]


def test_few_rows_take_the_kernel_that_predicts_refitted_folds_best(in_folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(80, 30))
    y = x.sum(axis=1) + 0.1 * rng.normal(size=80)  # all features matter alike
    model = KernelFlowRegressor().fit(x[:60], y[:60])
    assert np.ptp(np.asarray(model.lengths_)) < 1e-12 * np.max(model.lengths_) or any(
        "initial kernel" in note for note in model.remarks_
    )


@pytest.mark.parametrize("fails", [True, False])
def test_deviations_are_those_of_the_kernel_that_is_kept(monkeypatch, fails):
    def scripted(config, tensors, weights, noisy, procedures):
        errors = np.ones(len(procedures))
        errors[3] = 0.5  # that with one length, fitted
        return errors, [3.0 if number == 3 else 1.0 for number in range(len(procedures))]

    def of_all_points(start, config, tensors, weights):
        if fails:
            raise NumericalError(Event.DIVERGED, "scripted")
        return start

    monkeypatch.setattr(refitted, "errors_of_procedures", scripted)
    monkeypatch.setattr(refitted, "trained_from", of_all_points)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    model = KernelFlowRegressor(optimizer={"iterations": 2}).fit(x, x[:, 0] + 0.3 * rng.normal(size=60))
    assert any("one length" in note for note in model.remarks_)
    inflation = model._predictor.units.inflation
    assert inflation == (1 if fails else 3)  # the untrained kernel, which is kept then, is not too sure


@pytest.mark.parametrize("seed", range(4))
def test_deviations_of_few_points_are_not_larger_than_those_of_the_mean_of_the_targets(seed):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(8, 1))
    deviations, errors = np.full((8, 1), 0.1), np.full((8, 1), 0.1)
    assert refitted._inflation(errors, deviations, y) == 1
    errors[0] = 9.0  # a point far from the others
    assert refitted._inflation(errors, deviations, y) == pytest.approx(y.std() / 0.1)
    errors[:] = 0.4
    assert refitted._inflation(errors, deviations, y) == pytest.approx(4 / stats.norm.ppf(0.975))
    deviations[:3] = np.nan
    assert refitted._inflation(errors, deviations, y) == pytest.approx(4 / stats.norm.ppf(0.975))
    assert refitted._inflation(errors, np.full((8, 1), np.nan), y) == 1


def test_steps_are_found_by_the_points_alone():
    x, y = spectra()
    data = preprocess(Dataset("d", x, y[:, None], x[:2], y[:2, None]), ["snv", "second_derivative", "normalize"])
    np.testing.assert_array_equal(data.mapped(x[:2]), data.x_test)


def test_a_target_without_a_logarithm_has_no_density(kfx, in_folder):
    x, y = lognormal(60)
    y[50] = 0.0
    frame = pd.DataFrame(x).assign(target=y, split=["train"] * 50 + ["test"] * 10)
    frame.to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=target", "dataset.test=split", "figures=false"]
    assert kfx("run", *words, "dataset.targets=log", "optimizer.iterations=2", "hydra.run.dir=r")[0] == 0
    rows = load_run("r").evaluation.query("kernel == 'trained'").set_index("metric")["value"]
    assert rows["nlpd"] == np.inf
    assert np.isfinite(rows["mse"])
    assert 0 <= rows["coverage_95"] <= 0.9


def test_scores_of_transformed_targets_have_the_weights_of_their_points(kfx, in_folder):
    x, y = lognormal(80)
    frame = pd.DataFrame(np.log(x)).assign(target=y**0.3, w=np.random.default_rng(2).uniform(0.1, 3, 80))
    frame.to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=target", "dataset.weights=w", "figures=false"]
    assert kfx("run", *words, "dataset.targets=log", "optimizer.iterations=20", "hydra.run.dir=r")[0] == 0
    rows = load_run("r").evaluation.query("kernel == 'trained'").set_index("metric")["value"]
    own = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    within = own["target"].between(own["low"], own["high"])
    assert rows["coverage_95"] == pytest.approx(np.average(within, weights=own["weight"]))
    variance = (np.log(own["high"] / own["low"]) / 2 / stats.norm.ppf(0.975)) ** 2
    density = stats.lognorm.logpdf(own["target"], np.sqrt(variance), scale=np.sqrt(own["high"] * own["low"]))
    assert rows["nlpd"] == pytest.approx(-np.average(density, weights=own["weight"]), rel=1e-6)


def test_gaps_are_filled_within_folds_by_estimators_too(kfx, in_folder):
    rng = np.random.default_rng(4)
    x, y = lognormal(60, seed=4)
    x[rng.permutation(60)[:15], 0] = np.nan
    frame = pd.DataFrame(x, columns=list("abc")).assign(target=y, split=["train"] * 50 + ["test"] * 10)
    frame.to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=target", "dataset.test=split", "figures=false"]
    assert kfx("run", *words, "optimizer.iterations=5", "hydra.run.dir=r")[0] == 0
    own = KernelFlowRegressor(optimizer={"iterations": 5}).fit(frame[list("abc")][:50], y[:50])
    predicted = pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    mean, deviation = own.predict(frame[list("abc")][50:], return_std=True)
    np.testing.assert_allclose(mean, predicted["prediction"], rtol=1e-9)
    np.testing.assert_allclose(deviation, predicted["deviation"], rtol=1e-7)


@pytest.mark.parametrize("kernels", ["shared", "separate"])
def test_inflation_is_in_all_deviations_of_reduced_outputs(kfx, in_folder, kernels):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 6))
    y = np.stack([np.sin(x[:, 0]), x[:, 1], x[:, 0] + x[:, 2]], axis=1) + 0.1 * rng.normal(size=(40, 3))
    outputs = {"reduce": "pca", "components": 2, "kernels": kernels}
    model = KernelFlowRegressor(outputs=outputs, optimizer={"iterations": 20}).fit(x, y)
    deviation, basis, left_out = model.predict_covariance(x[:5])
    expected = np.sqrt(np.square(deviation) @ np.square(basis) + left_out)
    np.testing.assert_allclose(model.predict(x[:5], return_std=True)[1], expected, rtol=1e-9)
    names = [f"y{i}" for i in range(3)]
    frame = pd.DataFrame(np.hstack([x, y]), columns=[*"abcdef", *names])
    frame.assign(split=["train"] * 34 + ["test"] * 6).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", 'dataset.target="y*"', "dataset.test=split", "figures=false"]
    words += ["outputs.reduce=pca", "outputs.components=2", f"outputs.kernels={kernels}", "optimizer.iterations=20"]
    assert kfx("run", *words, "hydra.run.dir=r")[0] == 0
    run, predicted = load_run("r"), pd.read_csv("r/predictions.csv").query("kernel == 'trained'")
    mean, scale = frame[list("abcdef")][:34].mean().to_numpy(), frame[list("abcdef")][:34].std(ddof=0).to_numpy()
    found = run.estimator().predict((x[34:] - mean) / scale, return_std=True)
    np.testing.assert_allclose(found[0], predicted[[f"prediction.{i}" for i in range(3)]], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found[1], predicted[[f"deviation.{i}" for i in range(3)]], rtol=1e-6)


def test_draws_have_the_deviation_of_predictions():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 8)), rng.normal(size=40)
    model = KernelFlowRegressor(optimizer={"iterations": 30}).fit(x, y)
    drawn = model.sample_y(x[:4], 20_000)
    latent = model.predict(x[:4], return_std=True)[1] ** 2 - drawn.var(axis=1)
    np.testing.assert_allclose(latent, latent.mean(), rtol=0.05)  # what is left is the noise
    assert latent.mean() > 0


def test_a_gram_matrix_is_that_of_the_points_and_the_kernel_of_a_run(kfx, in_folder):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": np.exp(3 * rng.normal(size=120)), "b": rng.normal(size=120)})
    frame.assign(y=np.log(frame["a"]) + frame["b"] ** 2).to_csv("t.csv", index=False)
    words = ["dataset=table", "dataset.path=t.csv", "dataset.target=y", "device.precision_check=off"]
    code, _, err = kfx("gram", *words, "--output", "g")
    assert (code, "quantile" in err) == (0, True), err
    assert kfx("run", *words, "optimizer.iterations=1", "optimizer.fall_back=false", "hydra.run.dir=r")[0] == 0
    run = load_run("r")
    assert run.metrics["preparation"][0]["preprocess"][0] == "quantile"
    initial = run.metrics["parameters"]["initial"]
    kernel = run.kernel.with_parameters(**{name: initial[name] for name in ("lengths", "roughness", "stretch")})
    points = Model.of_run(run).predictor.interpolant.points.numpy()
    expected, found = (np.linalg.eigvalsh(each) for each in (kernel.gram(points), np.load("g/gram.npy")))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
