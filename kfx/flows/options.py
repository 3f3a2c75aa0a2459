"""Options of flows, and the settings that they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kfx.config.choices import METHODS, SOLVERS
from kfx.config.fields import Several, cutoff, flag, nested, number, word
from kfx.config.nodes import make_option
from kfx.config.option import Option, Settings, option, section
from kfx.config.parts import ConfigView
from kfx.config.rules import POINT_GRADIENTS, needs, refuses, rows
from kfx.optimizers.options import AdamOption, NesterovOption, OptimizerOption, SGDOption, momentum, rate, space
from kfx.outcomes import ConfigError

if TYPE_CHECKING:
    from kfx.flows.flow import FlowSettings
    from kfx.flows.vector_field import Interpolation
    from kfx.kernels.base import Kernel
    from kfx.optimizers.loop import Optimizer


@section("flow", "settings of flows; flow_rk45 ignores those of Euler steps, other optimizers all")
class FlowSection(Option):
    field: str = word(
        "original | complete",
        "velocity of batch points; original: -d rho/dx; complete: the interpolated field, as at other points",
    )
    step_rule: str = word(
        "relative | relative_to_largest | absolute | constant",
        "Euler: bound on |step v|; relative: step_size |x| for each point; relative_to_largest: "
        "step_size max |x|; absolute: step_size; constant: none, the step is step_size",
    )
    unit_below: float = number(
        0.0,
        ">= 0",
        "Euler: speed below which a point counts in step_rule as one of speed 1 (1e-6 in Darcy's code); 0: never",
    )
    step_size: float = number(
        0.01, "> 0", "Euler: size of the bound in step_rule; with step_rule=constant, the step itself"
    )
    step_over: str = word(
        "batch | all", "Euler: points for which the bound of step_rule holds: the batch, or all training points"
    )
    decay_after: int | None = number(
        None,
        "whole >= 1",
        "Euler: layer n0 after which step_size decays as sqrt(n0 / n) with the layer n",
        null="no decay",
    )
    test_step: str = word(
        "train | test | min",
        "Euler: step of test points; train: that of training points; test: by step_rule from the test points; "
        "min: the smaller",
    )
    remove_merged: float = number(
        0.0, ">= 0", "distance below which one of two points with the same target is left out of batches; 0: never"
    )
    record_layers: bool = flag(
        False,
        "save the layers, with which load_run(…).kernel moves, and predicts, other points; with series always",
    )
    snapshots: int = number(
        50,
        "whole >= 0 and <= 100000",
        "number of snapshots of the points, evenly over the layers, for pictures and films",
    )
    snapshot_points: int = number(
        300, "whole >= 1", "largest number of training points, and of test points, in a snapshot"
    )

    def settled(self, config: ConfigView) -> Settings:
        return {"record_layers": True} if config.dataset.is_series and config.optimizer.moves_points else {}


@section("interpolation", "how a flow's velocity field is interpolated from the batch to other points")
class InterpolationSection(Option):
    kernel: Several = nested(
        None,
        "a kernel: name and parameters, or null",
        lambda path, value: None if value is None else make_option(path, "kernel", value),
        "kernel that interpolates the velocity field; null: the flow's own kernel",
    )
    regularization: float | None = number(
        None, ">= 0", "lambda of the interpolation, in units of regularization.scale", null="regularization.value"
    )
    solver: str = word(SOLVERS, "solver of the interpolation; lstsq and inverse only to repeat published runs")
    rcond: float | None = cutoff()

    def build(self, config: ConfigView) -> Interpolation:
        from kfx.flows.vector_field import Interpolation
        from kfx.numerics.regularization import Regularization

        value = config.regularization.build().value if self.regularization is None else self.regularization
        own = None if self.kernel is None else self.kernel.build(config.dataset.image)
        return Interpolation(own, Regularization(value, config.regularization.scale), self.solver, self.rcond)


@dataclass
class FlowOption(OptimizerOption):
    """A flow. A subclass has a field for each setting, and `builds` or `build`."""

    rules = rows(
        needs(POINT_GRADIENTS, "use adam"),
        refuses(lambda _, c: c.kernel_check, "does not move what kernel_check=true compares; set it to false"),
        refuses(
            lambda _, c: c.sampler.choice == "neighbourhood",
            "neighbours, of sampler.choice=neighbourhood, change along a flow; use uniform or stratified",
        ),
    )

    iterations: int = number(100, "whole >= 1", "number of layers")

    moves_points = True
    moves_regularization = "never"
    keeps_within_bounds = False
    quick = ("dataset.n_train=60", "dataset.n_test=30", "sampler.batch_size=20", "optimizer.iterations=2")

    def build(self, config: ConfigView) -> Optimizer:
        return self.constructor()(*self.arguments(config), self.settings(config), **self.own(config))

    def own(self, config: ConfigView) -> Settings:
        """What its flow takes beside the settings of all."""
        return self.beyond(FlowOption)

    def settings(self, config: ConfigView) -> FlowSettings:
        from kfx.flows.flow import FlowSettings

        node, interpolation = _sections(config)
        own = interpolation.build(config)
        return FlowSettings(own, node.field == "complete", node.remove_merged, node.record_layers)

    def euler(self, config: ConfigView) -> Settings:
        """How Euler steps are chosen."""
        from kfx.flows.layers import StepRule

        node, _ = _sections(config)
        rule = StepRule(node.step_rule, node.step_size, node.decay_after, node.unit_below)
        return {"rule": rule, "over": node.step_over, "test_step": node.test_step}

    def check(self, config: ConfigView) -> None:
        super().check(config)
        _, own = _sections(config)
        if own.rcond is not None and own.solver != "lstsq":
            raise ConfigError(f"interpolation.rcond={own.rcond}: is lstsq's; set interpolation.solver=lstsq")

    def check_start(self, config: ConfigView, kernel: Kernel) -> None:
        own = _sections(config)[1].kernel
        if own is not None:
            if own.initial != "explicit" or own.starts != 1:
                raise ConfigError("interpolation.kernel: its parameters are fixed; leave initial and starts out")
            own.build(config.dataset.image)
        super().check_start(config, kernel)


def _sections(config: ConfigView) -> tuple[FlowSection, InterpolationSection]:
    assert isinstance(config.flow, FlowSection)
    assert isinstance(config.interpolation, InterpolationSection)
    return config.flow, config.interpolation


@option(
    "optimizer", "flow_euler", "The points flow along -d rho/dx, one Euler step per layer; see flow and interpolation"
)
class FlowEulerOption(FlowOption):
    builds = "kfx.flows.euler:EulerFlow"

    def own(self, config: ConfigView) -> Settings:
        return self.euler(config)


@option(
    "optimizer",
    "flow_rk45",
    "The points flow along -d rho/dx, each layer from t = 0 to 1 by a Runge-Kutta method; see flow and interpolation",
)
class FlowRK45Option(FlowOption):
    builds = "kfx.flows.runge_kutta:RungeKuttaFlow"

    method: str = word(METHODS, "explicit Runge-Kutta method, as named in SciPy", default="RK45")
    rtol: float = number(1e-3, "> 0", "relative tolerance of the integration of training points")
    atol: float = number(1e-6, "> 0", "absolute tolerance of the integration of training points")
    max_evaluations: int = number(
        20000,
        "whole >= 1",
        "largest number of evaluations of the velocity field in a layer; a layer that needs more ends the flow",
    )


@option(
    "optimizer",
    "hybrid",
    "Points move by Euler steps and parameters by gradient steps, from one pullback; see flow and interpolation",
)
class HybridOption(FlowOption):
    builds = "kfx.flows.euler:HybridFlow"
    keeps_within_bounds = True
    moves_regularization = "in log space"

    rule: str = word(
        "sgd | nesterov | adam", "update rule of the parameters; nesterov takes the gradient at its look-ahead point"
    )
    learning_rate: float = rate()
    momentum: float = momentum()
    space: str = space("raw")

    def own(self, config: ConfigView) -> Settings:
        rules = {
            "sgd": SGDOption(learning_rate=self.learning_rate),
            "nesterov": NesterovOption(learning_rate=self.learning_rate, momentum=self.momentum),
            "adam": AdamOption(learning_rate=self.learning_rate),
        }
        return {"parameters": rules[self.rule].rule(), "space": self.space, **self.euler(config)}
