"""`kfx predict`: predictions of a run for new rows."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from kfx.commands.arguments import Commands, add_plugins
from kfx.outcomes import DataError

_MOST_NAMED = 20


def add(commands: Commands) -> None:
    """Register the command."""
    predict = commands.add_parser(
        "predict",
        help="predictions of a run for the rows of a file",
        description="Read rows with the columns of the run's table, or the points x of an .npz file, encode them as "
        "the run did, and write the predictions of its trained kernel as CSV: a value with its standard deviation, or "
        "a class with the predicted target of each class. Rows that cannot be read are named and left out.",
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
    from kfx.record.reading import load_run
    from kfx.screen.progress import Steps

    if not parsed.file.is_file():
        raise DataError(f"{parsed.file}: is not there; expected a file with new rows")
    model = Model.of_run(load_run(parsed.run, parsed.plugin))
    if parsed.output is not None:
        make_folder("--output", parsed.output.parent, resume=True)
    done, problems, total = 0, 0, count(parsed.file)
    with contextlib.ExitStack() as held:
        stream = sys.stdout
        if parsed.output is not None:
            stream = held.enter_context(parsed.output.open("w", encoding="utf-8", newline=""))
        steps = held.enter_context(Steps("rows", total))
        for chunk, predicted in model.predictions(parsed.file):
            for row, what in chunk.problems.items():
                problems += 1
                if parsed.strict:
                    raise DataError(f"{parsed.file}: row {row}: {what}")
                if problems <= _MOST_NAMED:
                    print(f"kfx: {parsed.file}: row {row} is left out: {what}", file=sys.stderr)
            predicted.to_csv(stream, index=False, header=not done)
            stream.flush()
            done += len(predicted)
            steps.reach(min(done + problems, total))
    if problems > _MOST_NAMED:
        print(f"kfx: {parsed.file}: {problems - _MOST_NAMED} more rows are left out", file=sys.stderr)
    if not done:
        raise DataError(f"{parsed.file}: no row can be read")
    if parsed.output is not None:
        print(parsed.output)
    return 0
