"""`kfx predict`: predictions of a run for new rows."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from kfx.commands.arguments import Commands, add_plugins
from kfx.outcomes import ConfigError, DataError

_MOST_NAMED = 20


def add(commands: Commands) -> None:
    """Register the command."""
    predict = commands.add_parser(
        "predict",
        help="predictions of a run for the rows of a file",
        description="Read rows with the columns of the run's table, or the points x of an .npz file, encode them as "
        "the run did, and write the predictions of its trained kernel as CSV: a value with its standard deviation, or "
        "a class with the probability of each class. Rows that cannot be read are named and left out.",
    )
    predict.add_argument("run", type=Path, metavar="RUN")
    predict.add_argument("file", type=Path, metavar="FILE", help=".csv, .tsv, .txt, .parquet, or .npz")
    predict.add_argument("--output", type=Path, help="CSV file (default: print)")
    predict.add_argument("--strict", action="store_true", help="end with an error at the first row that cannot be read")
    add_plugins(predict)
    predict.set_defaults(call=_predict)


def _predict(parsed: argparse.Namespace) -> int:
    from kfx.data.new_rows import count
    from kfx.estimators.recorded import Model
    from kfx.experiment.preflight import make_folder
    from kfx.files import whole_file
    from kfx.record.reading import load_run
    from kfx.screen.progress import Steps

    file, output = parsed.file, parsed.output
    if not file.is_file():
        raise DataError(f"{file}: is not there; expected a file with new rows")
    if not (parsed.run / "metrics.json").is_file():
        raise ConfigError(f"{parsed.run}: holds no run")
    model = Model.of_run(load_run(parsed.run, parsed.plugin))
    if output is not None:
        make_folder("--output", output.parent, resume=True)
        if output.exists() and any(output.samefile(each) for each in (file, *model.config.dataset.paths())):
            raise ConfigError(f"--output {output}: is the file of the rows, or of the run's data; expected another")
    done, problems, is_first, total = 0, 0, True, count(file)
    with contextlib.ExitStack() as held:
        stream = sys.stdout.buffer if output is None else held.enter_context(whole_file(output))
        steps = held.enter_context(Steps("rows", total))
        for chunk, predicted in model.predictions(file):
            for row, what in chunk.problems.items():
                problems += 1
                if parsed.strict:
                    raise DataError(f"{file}: row {row}: {what}")
                if problems <= _MOST_NAMED:
                    print(f"kfx: {file}: row {row} is left out: {what}", file=sys.stderr)
            stream.write(predicted.to_csv(index=False, header=is_first).encode())
            done, is_first = done + len(predicted), False
            steps.reach(min(done + problems, total))
        if not done:
            raise DataError(f"{file}: no row can be read")
    if problems > _MOST_NAMED:
        print(f"kfx: {file}: {problems - _MOST_NAMED} more rows are left out", file=sys.stderr)
    if output is not None:
        print(output)
    return 0
