"""`kfx gram`: the Gram matrix of a configured kernel on a configured data set, as files or in a store."""

from __future__ import annotations

import argparse
from pathlib import Path

from kfx.commands.arguments import Commands, add_cluster, add_overrides, add_plugins, of_cluster
from kfx.outcomes import ConfigError


def add(commands: Commands) -> None:
    """Register the command."""
    gram = commands.add_parser(
        "gram",
        help="the Gram matrix of a configured kernel on a configured dataset",
        description="The Gram matrix of a configured kernel on a configured dataset: gram.npy, or with --store tiles "
        "on disk for sizes beyond memory. `kfx gram verify DIR` reads every tile of a store and says what is missing "
        "or damaged.",
    )
    add_overrides(gram)
    add_plugins(gram)
    gram.add_argument("--output", type=Path, help="folder for gram.npy (default: here)")
    gram.add_argument("--test", action="store_true", help="also test points against training points: gram_test.npy")
    gram.add_argument("--block", type=int, help="rows of gram.npy at a time (default: 500)")
    gram.add_argument("--store", type=Path, metavar="DIR", help="tiles on disk, not gram.npy; continues a store")
    gram.add_argument("--tile", type=int, help="rows of a tile of a new store (default: by the number of points)")
    add_cluster(gram, "with --store: ")
    gram.add_argument("--drop", action="store_true", help="with verify: remove damaged tiles, to be computed again")
    gram.set_defaults(call=_gram)


def _gram(parsed: argparse.Namespace) -> int:
    if parsed.overrides[:1] == ["verify"]:
        return _verify(parsed)
    from kfx.config.overrides import quoted
    from kfx.config.plugins import load_plugins
    from kfx.experiment import preflight
    from kfx.experiment.compose import load
    from kfx.record.output import require_no_record
    from kfx.running.gram import fill, save

    _require(parsed)
    load_plugins(parsed.plugin)
    unused = ["sampler.batch_size=null", "evaluation.n_interpolation=[1]"]  # a Gram matrix needs none
    unmoved = "optimizer=none"  # takes parameters beyond their bounds
    exact = ["evaluation.solver=cholesky", "evaluation.centres=null", "evaluation.choose=null"]
    cluster = [f"{key}={quoted(str(value))}" for key, value in of_cluster(parsed).items()]
    settings = load([*unused, unmoved, *parsed.overrides, *exact, *cluster])
    if settings.dataset.is_own:  # the kernel with which training begins is not that of no training
        settings = load([*unused, *parsed.overrides, *exact, *cluster])
    preflight.check([settings])
    if parsed.store is not None:
        print(fill(settings, parsed.store, parsed.test, parsed.tile).folder)
        return 0
    folder = parsed.output or Path(".")
    require_no_record("--output", folder)
    preflight.make_folder("--output", folder, resume=True)
    for path in save(settings, folder, parsed.test, parsed.block or 500):
        print(path)
    return 0


def _require(parsed: argparse.Namespace) -> None:
    """ConfigError for arguments that cannot be combined."""
    if parsed.block is not None and parsed.block < 1:
        raise ConfigError(f"--block {parsed.block}: expected a whole number >= 1")
    if parsed.tile is not None and not 16 <= parsed.tile <= 16384:
        raise ConfigError(f"--tile {parsed.tile}: expected a whole number >= 16 and <= 16384")
    wants_store = parsed.store is not None
    for name in ("output", "block") if wants_store else ("tile", "workers", "scheduler", "dashboard"):
        if (value := getattr(parsed, name)) is not None:
            where = "is of gram.npy; leave it out with --store" if wants_store else "is of a store; add --store DIR"
            raise ConfigError(f"--{name} {value}: {where}")
    if parsed.drop:
        raise ConfigError("--drop: is of kfx gram verify DIR")


def _verify(parsed: argparse.Namespace) -> int:
    from kfx.running.gram import verify

    if len(parsed.overrides) != 2:
        raise ConfigError(f"kfx gram verify: expected one folder, got {len(parsed.overrides) - 1}")
    for name in ("output", "block", "store", "tile", "workers", "scheduler", "dashboard"):
        if (value := getattr(parsed, name)) is not None:
            raise ConfigError(f"--{name} {value}: is not of kfx gram verify, which takes --drop")
    lines, is_sound = verify(Path(parsed.overrides[1]), parsed.drop)
    print("\n".join(lines))
    return 0 if is_sound else 1
