"""`kfx gram`: the Gram matrix of a configured kernel on a configured data set, as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kfx.commands.arguments import add_overrides, add_plugins
from kfx.outcomes import ConfigError


def add(commands: Any) -> None:
    """Register the command."""
    gram = commands.add_parser("gram", help="the Gram matrix of a configured kernel on a configured dataset")
    add_overrides(gram)
    add_plugins(gram)
    gram.add_argument("--output", type=Path, default=Path("."), help="folder for gram.npy (default: here)")
    gram.add_argument("--test", action="store_true", help="also test points against training points: gram_test.npy")
    gram.add_argument("--block", type=int, default=500, help="rows of gram.npy computed at a time (default: 500)")
    gram.add_argument(
        "--store", type=Path, metavar="DIR", help="in tiles, for sizes beyond memory; goes on where it is"
    )
    gram.add_argument("--tile", type=int, help="rows of a tile of a new store (default: by the number of points)")
    gram.set_defaults(call=_gram)


def _gram(parsed: argparse.Namespace) -> int:
    from kfx.config import registry
    from kfx.config.compose import load
    from kfx.running import preflight
    from kfx.running.gram import fill, save

    if parsed.block < 1:
        raise ConfigError(f"--block {parsed.block}: expected a whole number >= 1")
    registry.plug_in(parsed.plugin)
    unused = ["sampler.batch_size=null", "evaluation.n_interpolation=[1]", "optimizer=none"]  # a Gram needs none
    settings = load([*unused, *parsed.overrides])
    preflight.check([settings])
    if parsed.store is not None:
        store = fill(settings, parsed.store, parsed.test, parsed.tile)
        print(store.folder)
        return 0
    preflight.make_folder("--output", parsed.output, resume=True)
    for path in save(settings, parsed.output, parsed.test, parsed.block):
        print(path)
    return 0
