"""Annotations of array shapes: which functions have them, and wrappers that check each call.

In: modules of jengine, whose annotations are strings. Out: wrapped functions, which fail where an
argument or the result is not what its annotation says.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from functools import wraps
from types import ModuleType
from typing import Any

import jax
import jaxtyping
import pytest

ROOMS = (
    "jengine.layers",
    "jengine.sampling",
    "jengine.models",
    "jengine.quantization",
    "jengine.runner.step",
)
KERNELS = (
    "pallas_kernels.layout",
    "pallas_kernels.cache_write",
    "pallas_kernels.decode_attention",
    "pallas_kernels.grouped_matmul",
    "pallas_kernels.prefill_attention",
    "pallas_kernels.mixed_attention",
    "pallas_kernels.token_sampling",
)
SHAPED = re.compile(r"""\[Array, ["']""")


def modules() -> Iterator[ModuleType]:
    for room in ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.iter_modules(package.__path__, f"{room}."):
            yield importlib.import_module(found.name)
    yield from map(importlib.import_module, KERNELS)


def has_shapes(function: Any) -> bool:
    hints = getattr(function, "__annotations__", {})
    return any(isinstance(hint, str) and SHAPED.search(hint) for hint in hints.values())


def annotated() -> dict[str, tuple[Any, str, Callable[..., Any]]]:
    """Name -> (module or class, attribute, function) of everything that states shapes."""
    found: dict[str, tuple[Any, str, Callable[..., Any]]] = {}
    for module in modules():
        classes = [one for one in vars(module).values() if inspect.isclass(one)]
        for owner in (module, *(one for one in classes if one.__module__ == module.__name__)):
            path = module.__name__ + ("" if owner is module else f".{owner.__name__}")
            for name, function in list(vars(owner).items()):
                own = getattr(function, "__module__", None) == module.__name__
                if own and not inspect.isclass(function) and has_shapes(function):
                    found[f"{path}.{name}"] = (owner, name, function)
    return found


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a hint says; dimensions are those of the open jaxtyping context."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        if parts[-1] is Ellipsis and isinstance(value, tuple):
            parts = parts[:1] * len(value)
        alike = isinstance(value, tuple) and len(value) == len(parts)
        return alike and all(map(fits, value, parts))
    if hint is type(None):
        return value is None
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return isinstance(value, hint)
    return isinstance(value, hint) if hint in (int, float, str, bool) else True


def checked(name: str, function: Callable[..., Any], seen: set[str]) -> Callable[..., Any]:
    """The function, failing where an argument or the result is not what its annotation says."""
    plain = inspect.unwrap(function)
    names = {**vars(jaxtyping), **vars(sys.modules[plain.__module__])}
    hints = typing.get_type_hints(plain, names)
    signature = inspect.signature(plain)

    @wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jaxtyping.jaxtyped("context"):
            for argument, value in signature.bind(*args, **kwargs).arguments.items():
                if argument in hints and not fits(value, hints[argument]):
                    raise TypeError(f"{name}: {argument} is {shown(value)}, not {hints[argument]}")
            result = function(*args, **kwargs)
            if not fits(result, hints["return"]):
                raise TypeError(f"{name} returns {shown(result)}, not {hints['return']}")
        seen.add(name)
        return result

    return wrapped


def shown(value: Any) -> str:
    return str(jax.tree.map(lambda x: getattr(x, "aval", x), value))


def check_all(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Check every annotated function from now on; the set gets the names of those called."""
    names: set[str] = set()
    packages = ("jengine", "pallas_kernels")
    for name, (owner, attribute, function) in annotated().items():
        if isinstance(function, classmethod):
            own = checked(name, function.__func__, names)
            monkeypatch.setattr(owner, attribute, classmethod(own))
            continue
        wrapped = checked(name, function, names)
        if inspect.isclass(owner):
            monkeypatch.setattr(owner, attribute, wrapped)
            continue
        for module in [one for key, one in sys.modules.items() if key.split(".")[0] in packages]:
            for alias, value in list(vars(module).items()):
                if value is function:
                    monkeypatch.setattr(module, alias, wrapped)
    return names
