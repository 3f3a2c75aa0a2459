"""The laws of criteria at small size, and the draws and the rule that they rest on."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest

from kfx.criteria import choice_laws, laws, rho_laws
from kfx.criteria.fields import SineField, fractional_brownian
from kfx.criteria.law import row, verdict
from kfx.kernels import Matern
from kfx.objectives import gcv


def judged(rows):
    """The verdict of each setting, and the law of each."""
    table = laws.table(pd.DataFrame(rows))
    return dict(zip(table["law"] + ": " + table["setting"], table["verdict"], strict=True))


def failing(rows):
    return {name for name, found in judged(rows).items() if found == "does not hold"}


@pytest.mark.parametrize(
    ("measured", "relation", "theory", "tolerance", "expected"),
    [
        (0.95, "=", 1.0, 0.05, "holds"),
        (0.94, "=", 1.0, 0.05, "does not hold"),
        (1.02, "≠", 1.0, 0.01, "holds"),
        (1.0, "≠", 1.0, 0.01, "does not hold"),
        (2.1, "≤", 2.0, 0.1, "holds"),
        (2.2, "≤", 2.0, 0.1, "does not hold"),
        (1.0, "<", 1.0, 0.0, "does not hold"),
        (1.1, ">", 1.0, 0.0, "holds"),
        (np.nan, "=", 1.0, 0.1, "does not hold"),
        (0.3, "?", np.nan, 0.0, "no theory"),
    ],
)
def test_the_rule_of_a_verdict(measured, relation, theory, tolerance, expected):
    assert verdict(measured, relation, theory, tolerance) == expected


def test_a_table_has_the_mean_over_seeds_and_leaves_curves_out():
    rows = [row("inefficiency → 1", "here", seed, value, "=", 1.0, 0.1) for seed, value in enumerate((1.0, 1.1, 1.5))]
    table = laws.table(pd.DataFrame([*rows, row("noise", "RBF", 0, 2.0, x=0.1)]))
    assert table["measured"].tolist() == [pytest.approx(1.2)]
    assert table["deviation"].tolist() == [pytest.approx(np.std([1.0, 1.1, 1.5], ddof=1))]
    assert table["verdict"].tolist() == ["does not hold"]
    assert table["source"].tolist() == [laws.SOURCES["inefficiency → 1"]]


def test_the_field_has_the_covariance_of_its_sine_series():
    field, waves = SineField(1, 8), np.arange(1, 32)
    nodes = np.array([2, 4, 6, 1, 3, 5, 7]) / 8  # those of the coarse grid first
    series = np.sqrt(2) * np.sin(np.pi * np.outer(nodes, waves))
    assert field.sample_size == 3
    assert field.gram(1.5) == pytest.approx(series * (np.pi * waves) ** -3.0 @ series.T, rel=1e-10)


@pytest.mark.parametrize(("dimensions", "side"), [(1, 8), (2, 4)])
def test_draws_of_the_field_have_its_covariance(dimensions, side):
    field, rng = SineField(dimensions, side), np.random.default_rng(0)
    draws = np.array([field.draw(1.5, rng) for _ in range(4000)])
    gram = field.gram(1.5)
    assert np.abs(draws.T @ draws / len(draws) - gram).max() < 0.08 * gram.max()


@pytest.mark.parametrize("hurst", [0.25, 0.75])
def test_fractional_brownian_motion_has_its_covariance(hurst):
    rng = np.random.default_rng(0)
    paths = np.array([fractional_brownian(hurst, 8, rng) for _ in range(4000)])
    t = np.arange(9) / 8
    covariance = (t[:, None] ** (2 * hurst) + t ** (2 * hurst) - np.abs(t[:, None] - t) ** (2 * hurst)) / 2
    assert paths.T @ paths / len(paths) == pytest.approx(covariance, abs=0.08)


def test_amplitudes_equal_their_definitions():
    rng = np.random.default_rng(0)
    gram, y = Matern(0.4, 1.5).gram(rng.random((9, 1))), rng.standard_normal((9, 2))
    errors = []
    for i in range(9):
        rest = np.arange(9) != i
        weights = np.linalg.solve(gram[np.ix_(rest, rest)], gram[rest, i])
        errors.append((y[i] - weights @ y[rest]) ** 2 / (gram[i, i] - weights @ gram[rest, i]))
    expected = [np.diag(y.T @ np.linalg.solve(gram, y)) / 9, np.mean(errors, axis=0)]
    assert choice_laws.amplitudes(gram, y) == pytest.approx(np.array(expected), rel=1e-6)


def test_kare_is_generalized_cross_validation():
    rng = np.random.default_rng(0)
    gram, y, ridge = Matern(0.4, 1.5).gram(rng.random((12, 1))), rng.standard_normal(12), 0.03
    inverse = np.linalg.inv(gram / 12 + ridge * np.eye(12))
    kare = (y @ inverse @ inverse @ y / 12) / (np.trace(inverse) / 12) ** 2  # Jacot et al. 2020
    assert gcv(gram, y, 1, 12 * ridge, False)[0] == pytest.approx(kare, rel=1e-10)


def test_the_likelihood_finds_the_regularity_and_rho_less_than_half_of_it():
    assert not failing(rho_laws.regularity(1, 256, (2.5, 2.75), (0.0, 3.0), 5))


@pytest.mark.slow
def test_the_regularity_in_the_plane():
    assert not failing(rho_laws.regularity(2, 32, (3.75, 4.0), (1.0, 4.25), 5))


def test_rho_of_the_kernels_own_draws_is_beta_distributed():
    rows = list(rho_laws.beta(100))
    assert not failing(rows)
    assert len({each["of"] for each in rows}) == 20


def test_a_beta_law_with_another_share_is_rejected(monkeypatch):
    monkeypatch.setattr(rho_laws, "_value", lambda *_: 0.5 + 0.01 * np.random.default_rng(0).random())
    assert failing(rho_laws.beta(50))


def test_rho_is_blind_to_the_length_of_its_own_process():
    rows = list(rho_laws.own_process(100, 3))
    assert not failing(rows)
    assert max(each["measured"] for each in rows if each["law"] == "length at ρ's minimum, own draws") < 0.5


def test_the_limit_of_rho_and_its_dependence_on_scale():
    assert not failing(rho_laws.scale(3))


@pytest.mark.parametrize(("nu", "moves"), [(None, True), (0.5, False), (2.5, True)])
def test_noise_moves_the_minimum_of_rho_to_longer_lengths_except_for_the_roughest_kernel(nu, moves):
    assert bool(failing(rho_laws.noise(nu, 1, halves=5))) is not moves


@pytest.mark.slow
def test_leave_one_out_follows_the_amplitude_of_more_processes_than_the_likelihood():
    assert not failing(choice_laws.brownian(128, 6))


def test_the_amplitude_of_fixed_functions():
    assert not failing(choice_laws.deterministic(256, 2))


def test_the_likelihood_is_better_where_the_kernel_is_right():
    shown = ("right", "half its length", "too rough, ν = 1/2")
    rows = [each for each in choice_laws.misspecified(200, 3) if each["setting"].endswith(shown)]
    assert len(judged(rows)) == 3
    assert not failing(rows)


def test_cross_validation_is_efficient_in_expectation():
    rows = [each for each in choice_laws.inefficiency(128, 2) if each["law"].startswith("expected")]
    assert not failing(rows)


@pytest.mark.slow
def test_kare_predicts_the_risk_where_its_assumption_is_near():
    rows = [each for each in choice_laws.kare(256, 5) if "d = 100" in each["setting"]]
    assert len(judged(rows)) == 3
    assert not failing(rows)


def test_every_cell_crosses_to_another_process_and_names_laws_with_sources():
    cells = laws.cells(seeds=1, draws=20, points=64)
    some = {name: pickle.loads(pickle.dumps(cells[name]))() for name in ("scale", "deterministic", "regularity-1d")}
    assert {each["law"] for rows in some.values() for each in rows} <= set(laws.SOURCES)


def test_the_picture_shows_exponents_the_own_process_and_noise():
    rows = [*rho_laws.regularity(1, 32, (2.5,), (0.5, 3.0), 2), *rho_laws.own_process(5, 1, 30)]
    drawn = laws.picture(pd.DataFrame([*rows, *rho_laws.noise(None, 1, 30, 2)]))
    left, middle, right = drawn.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == list(laws.SOURCES)[:2]
    assert len(middle.lines[0].get_xdata()) == 25
    assert list(right.lines[0].get_xdata()) == [0.0, 1e-3, 1e-2, 1e-1]
