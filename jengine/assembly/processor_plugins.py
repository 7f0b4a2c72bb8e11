"""Logits processors that installed packages bring for every engine. No jax.

A package names them in its entry points, group `jengine.logits_processors`: JAX functions, or
classes derived from `jengine.LogitsProcessor`. vLLM's own group is read as well; what stands there
for vLLM's torch tensors is left out, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from jengine.errors import ConfigError, JengineError

logger = logging.getLogger(__name__)
GROUP, VLLM_GROUP = "jengine.logits_processors", "vllm.logits_processors"
# What is loaded, and the words that name it in errors -> the same, or an error.
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
