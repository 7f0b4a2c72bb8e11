"""Logits processors of an engine, and how requests' own are numbered. No jax.

In: functions, or names of functions that every process can import. Out: functions; the numbers of
sets of them. Must not know how a step applies them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence

from jengine.assembly.args import EngineArgs
from jengine.assembly.engine import DeviceSide
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.sampling.processor_sets import Processor

Numbering = Callable[[Sequence[Processor]], int]


def engine_processors(args: EngineArgs) -> list[Processor]:
    """The functions that all requests of an engine use."""
    return [resolved(one) if isinstance(one, str) else one for one in args.logits_processors or ()]


def resolved(path: str) -> Processor:
    """The function that `package.module:name` names."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"logits_processors: {path!r} cannot be imported ({error}). Expected "
            "'package.module:function', in a package that every process of the engine finds."
        ) from error
    if isinstance(found, type) or not callable(found):
        raise ConfigError(
            f"logits_processors: {path!r} is a {type(found).__name__}; expected a JAX function "
            "f(logits) or f(ids, logits)."
        )
    return found


def numbering(args: EngineArgs, devices: DeviceSide | None) -> Numbering:
    """Gives the functions of requests, behind those of the engine, numbers that steps know."""
    if devices is not None:
        usual, sets = engine_processors(args), devices.runners[0].loaded.processors
        return lambda functions: sets.number_of([*usual, *functions])

    def number_elsewhere(functions: Sequence[Processor]) -> int:
        if functions:
            raise UnsupportedFeature(
                "SamplingParams(logits_processors=...) with steps in another process: functions "
                "cannot be sent there. Give the engine logits_processors=['package.module:name'], "
                "or leave multiprocess out."
            )
        return 1 if args.logits_processors else 0  # the set that each core makes first

    return number_elsewhere
