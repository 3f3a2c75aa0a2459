"""The laws of kernel-learning criteria, each measured beside what its paper says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from kfx.criteria import choice_laws, rho_laws
from kfx.criteria.law import Row, verdict

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SOURCES = {
    "likelihood finds s*": "Chen, Owhadi & Stuart 2021",
    "ρ finds (s* − d/2)/2": "Chen, Owhadi & Stuart 2021",
    "ρ ~ Beta(m N_h/2, m N_c/2)": "derived: L⁻¹y is white",
    "mean of ρ over draws of a process": "derived: Beta's mean; symmetry",
    "length at ρ's minimum, own draws": "measured",
    "ρ → 1 − ‖Y_c‖²/‖Y‖²": "derived: Θ + λI ≈ λI",
    "100 Θ leaves ρ as it is": "Owhadi & Yoo 2019; derived",
    "100 Θ changes ρ": "derived: λ keeps its size",
    "noise lengthens ρ's minimum": "expected; Darcy 2020, §2.3.1, says that it changes",
    "ρ's minimum ~ noise^a": "measured",
    "likelihood's amplitude ~ N^a": "Naslidnyk et al. 2025; a derived",
    "leave-one-out's amplitude ~ N^a": "Naslidnyk et al. 2025; a derived",
    "likelihood's amplitude of f ~ N^a": "Karvonen et al. 2020",
    "likelihood better, kernel right": "Bachoc 2013, ratio of errors",
    "leave-one-out better, kernel wrong": "Bachoc 2013, ratio of errors",
    "expected inefficiency → 1": "Craven & Wahba 1979",
    "inefficiency → 1": "Li 1986",
    "KARE over risk": "Jacot et al. 2020",
}
"""The paper of each law, or how it is derived."""


def cells(seeds: int = 20, draws: int = 1000, points: int = 256) -> dict[str, Callable[[], list[Row]]]:
    """The measurements by name. seeds: of each law. draws: of ρ for each setting of its law. points: base of all N."""
    calls: dict[str, partial[Iterator[Row]]] = {
        "regularity-2d": partial(rho_laws.regularity, 2, points // 8, (3.5, 3.75, 4.0), (1.0, 4.25), seeds),
        "inefficiency": partial(choice_laws.inefficiency, points, seeds),
        "brownian": partial(choice_laws.brownian, points, seeds),
        "regularity-1d": partial(rho_laws.regularity, 1, points, (2.0, 2.5, 2.75), (0.0, 3.0), seeds),
        "beta": partial(rho_laws.beta, draws),
        "own-process": partial(rho_laws.own_process, draws // 5, seeds),
        "scale": partial(rho_laws.scale, seeds),
        **{f"noise-{nu or 'rbf'}": partial(rho_laws.noise, nu, seeds) for nu in (None, 0.5, 1.5, 2.5)},
        "deterministic": partial(choice_laws.deterministic, points, seeds),
        "misspecified": partial(choice_laws.misspecified, draws // 2, seeds),
        "kare": partial(choice_laws.kare, points, seeds),
    }
    return {name: partial(_listed, call) for name, call in calls.items()}


def _listed(call: Callable[[], Iterator[Row]]) -> list[Row]:
    return list(call())


def table(rows: pd.DataFrame) -> pd.DataFrame:
    """A row for each law and setting: theory, mean and standard deviation of what n seeds measured, and the verdict.

    rule: the relation that the mean has to theory where the law holds, within the tolerance behind ±.
    """
    stated = ["law", "setting", "relation", "theory", "tolerance"]
    found = rows[rows["x"].isna()].groupby(stated, sort=False, dropna=False)["measured"]
    laws = found.agg(measured="mean", deviation="std", n="size").reset_index()
    laws["verdict"] = [verdict(*each) for each in laws[["measured", *stated[2:]]].itertuples(index=False)]
    laws["source"] = laws["law"].map(SOURCES)
    within = laws.pop("tolerance").map(lambda tolerance: f" ± {tolerance:g}" if tolerance else "")
    laws.insert(2, "rule", laws.pop("relation") + within)
    return laws.sort_values("law", key=lambda names: names.map(list(SOURCES).index), kind="stable", ignore_index=True)


def picture(rows: pd.DataFrame) -> Figure:
    """Exponents beside theory, the mean of ρ over draws against the kernel's length, and ρ's minimum against noise."""
    from kfx.plots.style import COLOURS, FAINT, MARKERS, Drawn, figure, headline

    drawn, (left, middle, right) = figure(columns=3, width=4.6, height=4.6)
    laws = table(rows)
    exponents = laws[laws["law"].str.contains("finds|amplitude")].groupby("law", sort=False)
    for i, (law, own) in enumerate(exponents):
        look: Drawn = {"color": COLOURS[i], "fmt": MARKERS[i], "label": law}
        left.errorbar(own["theory"], own["measured"], own["deviation"], **look)
        failed = own[own["verdict"] == "does not hold"]
        left.plot(failed["theory"], failed["measured"], "o", color="black", fillstyle="none", markersize=13)
    left.axline((0, 0), slope=1, color=FAINT, zorder=0)
    left.set(xlabel="exponent by theory", ylabel="exponent measured (in a circle: does not hold)")
    curves = rows[rows["x"].notna()]
    of_draws = curves[curves["law"] != "noise"].groupby("x")["measured"].mean()
    middle.plot(of_draws.index, of_draws, "o-", color=COLOURS[0], markersize=4)
    middle.axhline(0.5, color=FAINT, label="1 − p")
    middle.axvline(1.0, color=FAINT, linestyle="--", label="the draws' own length")
    middle.set(xscale="log", xlabel="length of the kernel over that of the draws")
    middle.set_ylabel("mean of ρ over draws of Matérn 3/2")
    for i, (name, own) in enumerate(curves[curves["law"] == "noise"].groupby("setting", sort=False)):
        lengths = own.groupby("x")["measured"].median()
        right.plot(lengths.index, lengths, color=COLOURS[i], marker=MARKERS[i], label=name)
    right.set_xscale("symlog", linthresh=1e-3)
    right.set(xlabel="standard deviation of the noise in sin x", ylabel="length at the minimum of ρ", yscale="log")
    for axes in (left, middle, right):
        axes.legend(fontsize=7, frameon=False, loc="lower right" if axes is middle else "upper left")
    headline(drawn, "Laws of kernel-learning criteria: theory and measurement")
    return drawn
