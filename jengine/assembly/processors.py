"""Logits processors of an engine and of requests. No jax.

In: functions, classes, or importable names of them; entry points of installed packages. Out: JAX
functions, which run in steps, as numbered sets; and classes of processors that run on the host.
Must not know how a step applies them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from jengine.assembly.engine import DeviceSide
from jengine.errors import ConfigError, JengineError, RequestError, UnsupportedFeature
from jengine.import_paths import imported
from jengine.logits_processor import LogitsProcessor
from jengine.sampling.processor_sets import Processor
from jengine.sampling_params import SamplingParams


def engine_processors(given: Sequence[Any] | None) -> list[Processor]:
    """JAX functions that apply to all requests."""
    return [one for one in _resolved(given) if not isinstance(one, type)]


def host_processors(given: Sequence[Any] | None) -> tuple[type[LogitsProcessor], ...]:
    """Classes of host-side processors that apply to all requests."""
    return tuple(one for one in _resolved(given) if isinstance(one, type))


def _resolved(given: Sequence[Any] | None) -> list[Any]:
    named = [resolved(one) if isinstance(one, str) else one for one in given or ()]
    return [*(one for one in installed_processors(checked) if one not in named), *named]


def resolved(path: str) -> Any:
    """Import the function or class named `package.module:name`."""
    return checked(imported("logits_processors", path), repr(path))


def checked(found: Any, named: str) -> Any:
    """Return `found` if it is a function or a class; otherwise raise an error that names it
    `named`."""
    is_class = isinstance(found, type)
    if issubclass(found, LogitsProcessor) if is_class else callable(found):
        return found
    what = f"the class {found.__name__}" if is_class else f"a {type(found).__name__}"
    raise ConfigError(
        f"logits_processors: {named} is {what}; expected a JAX function f(logits) or "
        "f(ids, logits), or a class derived from jengine.LogitsProcessor."
    )


class RequestProcessors:
    """Registers logits processors of the engine and of its requests with the steps."""

    def __init__(self, given: Sequence[Any] | None, devices: DeviceSide | None) -> None:
        self._usual = engine_processors(given)
        self._classes = host_processors(given)
        self._sets = None if devices is None else devices.runners[0].loaded.processors

    def number(self, functions: Sequence[Processor]) -> int:
        """Register a request's functions after the engine's; returns the number of the set in
        plans."""
        if self._sets is not None:
            wanted = [*self._usual, *functions]
            return self._sets.number_of(wanted) if wanted else 0
        if functions:
            raise UnsupportedFeature(
                "SamplingParams(logits_processors=...) with steps in another process: functions "
                "cannot be sent there. Give the engine logits_processors=['package.module:name'], "
                "or leave multiprocess out."
            )
        return 1 if self._usual else 0  # the engine's set, which each core registers first

    def check(self, params: SamplingParams) -> None:
        """Raise RequestError if a host-side logits processor refuses the parameters."""
        for one in self._classes:
            try:
                one.validate_params(params)
            except JengineError:
                raise
            except ValueError as error:
                raise RequestError(f"{one.__name__}: {error}") from error
        if params.processor_args and not self._classes:
            raise RequestError(
                f"extra_args={params.extra_args!r:.80}: this engine has no logits processor that "
                "reads them. Give it logits_processors=['package.module:Class'], or leave them out."
            )


# Entry points of group `jengine.logits_processors`: JAX functions, or subclasses of
# `jengine.LogitsProcessor`. vLLM's group is read too; processors of torch tensors in it are
# skipped, with a log line.

logger = logging.getLogger(__name__)
GROUP, VLLM_GROUP = "jengine.logits_processors", "vllm.logits_processors"
# (loaded object, its name in errors) -> the same object, or an error.
Check = Callable[[Any, str], Any]


@cache
def installed_processors(check: Check) -> tuple[Any, ...]:
    """Logits processors of all installed packages, sorted by entry point name."""
    own = [_loaded(one, check) for one in _sorted(GROUP)]
    return (*own, *_those_that_fit(check, own))


def _sorted(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda one: (one.name, one.value))


def _loaded(plugin: EntryPoint, check: Check) -> Any:
    try:
        found = plugin.load()
    except Exception as error:
        package = plugin.dist.name if plugin.dist else "an unknown package"
        raise ConfigError(
            f"the logits processor {plugin.name!r} of {package} ({plugin.value}) cannot be loaded: "
            f"{type(error).__name__}: {error}. Repair it, or uninstall {package}."
        ) from error
    return check(found, f"the entry point {plugin.name!r} ({plugin.value}) of {plugin.group}")


def _those_that_fit(check: Check, taken: list[Any]) -> list[Any]:
    """Processors in vLLM's entry point group that implement jengine's interface and are not in
    `taken`."""
    fit = []
    for plugin in _sorted(VLLM_GROUP):
        try:
            found = _loaded(plugin, check)
        except JengineError as error:
            logger.warning("Left out, as it is made for vLLM: %s", error)
            continue
        if found not in (*taken, *fit):
            fit.append(found)
    return fit
