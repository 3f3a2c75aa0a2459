"""The data set of runs of a simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kfx.config.choices import SIMULATORS
from kfx.config.fields import number, word
from kfx.config.option import option
from kfx.data.options import DatasetOption
from kfx.data.own_options import OwnDataset
from kfx.version import to_install

if TYPE_CHECKING:
    pass


@option(
    "dataset",
    "simulator",
    "Runs of a simulator by formula, or of PROSAIL, the reflectance of a canopy: tests of emulators",
)
class SimulatorOption(OwnDataset):
    builds = "kfx.data.simulators:simulate"

    n_train: int = number(500, "whole >= 2 and <= 2000000", "number of training runs, a Latin hypercube of the inputs")
    n_test: int = number(
        1000, "whole >= 0 and <= 100000", "number of test runs, with uniform inputs; 0 with evaluation=k_fold"
    )
    function: str = word(SIMULATORS, f"simulator; prosail, a spectrum of 2101 values, needs {to_install('prosail')}")

    noise: float = number(0.0, ">= 0", "standard deviation of the noise, added to training targets alone")

    is_table = True
    implied = {**DatasetOption.implied, "noise": 0.0}  # noqa: RUF012

    @property
    def is_simulated(self) -> bool:  # type: ignore[override]
        return self.noise == 0

    def feature_count(self) -> int:
        return SIMULATORS[self.function]

    def target_names(self) -> tuple[str, ...]:
        return tuple(map(str, range(400, 2501))) if self.function == "prosail" else ()
