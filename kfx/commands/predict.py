"""`kfx predict`: predictions of a run for new rows."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path

from kfx.commands.arguments import Commands, add_plugins
from kfx.outcomes import ConfigError, DataError


def add(commands: Commands) -> None:
    """Register the command."""
    predict = commands.add_parser(
        "predict",
        help="predictions of a run for the rows of a file",
        description="Read rows with the columns of the run's table, or the points x of an .npz file, encode them as "
        "the run did, and write the predictions of its trained kernel as CSV: a value with its standard deviation, or "
        "a class with the probability of each class. Rows that cannot be read are named and left out. A run on a "
        "series forecasts the values after the last rows of the file.",
    )
    predict.add_argument("run", type=Path, metavar="RUN")
    predict.add_argument("file", type=Path, metavar="FILE", help=".csv, .tsv, .txt, .parquet, or .npz")
    predict.add_argument("--output", type=Path, help="CSV file (default: print)")
    predict.add_argument("--steps", type=int, help="of a run on a series: number of values to forecast (default: 100)")
    predict.add_argument("--strict", action="store_true", help="end with an error at the first row that cannot be read")
    add_plugins(predict)
    predict.set_defaults(call=_predict)


def _predict(parsed: argparse.Namespace) -> int:
    from kfx.estimators.continued import forecast_onwards
    from kfx.estimators.recorded import Model, write_predictions
    from kfx.record.output import is_stream, require_places, written
    from kfx.record.reading import load_run

    file, output = parsed.file, parsed.output
    if not file.is_file():
        raise DataError(f"{file}: is not there; expected a file with new rows")
    if not (parsed.run / "metrics.json").is_file():
        raise ConfigError(f"{parsed.run}: holds no run")
    model = Model.of_run(load_run(parsed.run, parsed.plugin))
    require_places({"--output": output}, [file, *model.config.dataset.paths(), *map(Path, parsed.plugin)])
    if model.config.dataset.is_series:
        if parsed.steps is not None and parsed.steps < 1:
            raise ConfigError(f"--steps {parsed.steps}: expected a whole number >= 1")
    elif parsed.steps is not None:
        raise ConfigError(f"--steps {parsed.steps}: forecasts series, and {parsed.run} has none; leave it out")
    with nullcontext() if output is None else written("--output", output) as path:
        if model.config.dataset.is_series:
            table = forecast_onwards(model, file, parsed.steps).to_csv(index=False)
            print(table, end="") if path is None else path.write_text(table)
        else:
            write_predictions(model, file, path, strict=parsed.strict)
    if output is not None and not is_stream(output):
        print(output)
    return 0
