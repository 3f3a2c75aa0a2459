"""The words of a command, parsed by Hydra's grammar, and the jobs that the sweeps among them stand for."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, Quote, QuotedString, RangeSweep, Transformer
from hydra.errors import HydraException

from kfx.config.fields import Several
from kfx.config.overrides import literal, typed
from kfx.experiment.config import first_line
from kfx.outcomes import ConfigError

_MOST_JOBS = 10_000  # jobs of a sweep, which are all composed and checked before the first begins


def combinations(overrides: Sequence[str], multirun: bool) -> Iterator[list[str]]:
    """Yield the overrides of each job of a multirun; otherwise those of the one job."""
    parsed = parse(overrides)
    alternatives: dict[str, list[str]] = {}
    for override in parsed:
        key = override.get_key_element()
        if not override.is_sweep_override():
            alternatives[key] = [str(override.input_line)]
            continue
        if not multirun:
            several = f"{override.input_line}: several values need a multirun: kfx run -m …"
            swept = override.value()
            of_words = isinstance(swept, ChoiceSweep) and any(isinstance(value, str) for value in swept.list)
            quoting = quoting_of(str(override.input_line)) if of_words else None
            raise ConfigError(several + (f"; as one value, type {quoting}" if quoting else ""))
        if override.is_discrete_sweep():
            alternatives[key] = [f"{key}={value}" for value in _values(override)]
        elif not any(str(other.key_or_group) == "hydra/sweeper" for other in parsed):
            raise ConfigError(f"{override.input_line}: the basic sweeper takes lists; write {key}=a,b,c")
    jobs = math.prod(map(len, alternatives.values()))
    if jobs > _MOST_JOBS:
        raise ConfigError(f"-m: a sweep has at most {_MOST_JOBS} jobs, this one has more; split it")
    for choice in itertools.product(*alternatives.values()):
        yield list(choice)


def without_sweeps(overrides: Sequence[str]) -> list[str]:
    """The overrides that all jobs of a multirun share, from which Hydra composes its own settings."""
    return [str(override.input_line) for override in parse(overrides) if not override.is_sweep_override()]


def as_lists(overrides: Sequence[str]) -> list[str]:
    """The overrides with the values of each sweep written out, for Hydra's sweepers, which compute some ranges
    wrong."""

    def written(override: Override) -> str:
        if not override.is_discrete_sweep():
            return str(override.input_line)
        values = _values(override)
        listed = ",".join(values)
        return f"{override.get_key_element()}={listed if len(values) > 1 else f'choice({listed})'}"

    return list(map(written, parse(overrides)))


def parse(overrides: Sequence[str]) -> list[Override]:
    """The overrides as Hydra reads them; ConfigError, in one line, for one that cannot be read."""
    try:
        parsed = _parser().parse_overrides(list(overrides))
    except (HydraException, RecursionError) as error:
        wrong = next((word for word in overrides if not _is_read(word)), None)
        advice = f"in a shell, type {quoting}" if wrong and (quoting := quoting_of(wrong)) else "write key=value"
        raise ConfigError(f"cannot read {wrong or first_line(error)}; {advice}") from error
    if any(str(override.key_or_group) == "hydra.searchpath" for override in parsed):  # it may import a package
        raise ConfigError("hydra.searchpath: use --config-dir DIR for options of your own")
    return parsed


def _is_read(word: str) -> bool:
    try:
        return bool(_parser().parse_overrides([word]))
    except (HydraException, RecursionError):
        return False


def quoting_of(word: str) -> str | None:
    """An override as it is typed in a shell, with its value quoted as one text or a list of texts.

    None if it chooses an option of a group, or if quotation marks do not help.
    """
    key, _, value = word.partition("=")
    if "." not in key or not value or (value[0] in "[{" and value[-1] not in "]}"):
        return None
    items = [item.strip() for item in value[1:-1].split(",")] if value[0] + value[-1] == "[]" else value
    found = typed(key, literal(items))
    return found if _is_read(shlex.split(found)[0]) else None


# ---- the values of a sweep


@cache
def _parser() -> OverridesParser:
    """Hydra's parser, but for `sort`, with which Hydra 1.3 runs other values than those of a range."""
    parser = OverridesParser.create()
    sort = parser.functions.functions["sort"]

    def sort_values(*args: object, sweep: object = None, reverse: bool = False, **more: object) -> object:
        given = args[0] if len(args) == 1 else sweep
        if isinstance(given, RangeSweep):
            return ChoiceSweep(tags=given.tags, list=sorted(_of_range(given), reverse=reverse))
        return sort(*args, sweep=sweep, reverse=reverse, **more)

    parser.functions.functions["sort"] = sort_values
    return parser


def _values(override: Override) -> list[str]:
    """The values of a discrete sweep as texts of overrides; ConfigError for none or too many."""
    key, swept = override.get_key_element(), override.value()
    try:
        if isinstance(swept, RangeSweep):
            override._value = ChoiceSweep(list=list(_of_range(swept)), shuffle=swept.shuffle)
        elif isinstance(swept, ChoiceSweep):
            swept.list = [_kept(value) for value in swept.list]
        found = list(itertools.islice(override.sweep_string_iterator(), _MOST_JOBS + 1))
    except (HydraException, ValueError, ArithmeticError, MemoryError) as error:
        raise ConfigError(f"{override.input_line}: {first_line(error)}; write {key}=a,b,c") from error
    if not found:
        raise ConfigError(f"{override.input_line}: holds no value; write {key}=a,b,c")
    return found


def _of_range(sweep: RangeSweep) -> Iterator[Several]:
    """The values of a range, without its end: start, start + step, …; of decimal fractions computed exactly."""
    numbers = sweep.start, sweep.stop, sweep.step
    start, stop, step = (Decimal(str(number)) for number in numbers)
    if not (start.is_finite() and stop.is_finite() and step.is_finite() and step):
        raise ValueError("a range has finite ends and a step other than 0")
    values = (start + number * step for number in range(_MOST_JOBS + 1))
    inside = itertools.takewhile(lambda value: value < stop if step > 0 else value > stop, values)
    return map(int if all(isinstance(number, int) for number in numbers) else float, inside)


def _kept(value: Several) -> Several:
    """A text in quotation marks if it would be read as another value without, as those of choice("007") and str(7)."""
    if not isinstance(value, str):
        return value
    again = _parser().parse_override(f"key={Transformer.str(value)}").value()
    return value if again == value and isinstance(again, str) else QuotedString(value, Quote.single)
