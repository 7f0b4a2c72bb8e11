"""Isolates the engine from JAX's ambient configuration.

JAX's settings are per process and per thread: a caller may have set them for its own code, and the
engine's threads see others. `engine_context` sets the same ones in every thread. Knows their names
in JAX 0.10 to 0.12.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import lru_cache, wraps
from operator import attrgetter
from typing import Any, ParamSpec, TypeVar

import jax

# Setting -> the engine's value and, if equivalent, JAX's default. Left to the caller:
# numpy_rank_promotion, since the engine's code promotes no ranks, and JAX's logging.
OWN: dict[str, tuple[Any, ...]] = {
    "jax_enable_x64": (False,),
    "jax_disable_jit": (False,),
    "jax_no_tracing": (False,),
    "jax_no_execution": (False,),
    "jax_numpy_dtype_promotion": ("standard",),
    "jax_default_device": (None,),
    "jax_default_prng_impl": ("threefry2x32",),
    "jax_threefry_partitionable": (True,),
    "jax_enable_custom_prng": (False,),
    "jax_legacy_prng_key": ("allow",),
    "jax_transfer_guard_host_to_device": ("allow", None),
    "jax_transfer_guard_device_to_device": ("allow", None),
    "jax_transfer_guard_device_to_host": ("allow", None),
    "jax_debug_nans": (False,),
    "jax_debug_infs": (False,),
    "jax_debug_key_reuse": (False,),
    "jax_check_tracer_leaks": (False,),
    "jax_remove_size_one_mesh_axis_from_type": (False,),
    "jax_auto_pcast": (True,),
    "jax_allow_f16_reductions": (True,),
}
_values = attrgetter(*OWN)
_USUAL = tuple(values[-1] for values in OWN.values())
_ENTERED = tuple(values[0] for values in OWN.values())
_precision = jax.default_matmul_precision
# Of float32 operands; GPUs multiply them in tf32 by default, which keeps 11 bits of each.
EXACT = "highest"
P = ParamSpec("P")
R = TypeVar("R")


class engine_context:
    """Context manager and decorator: this thread uses the engine's JAX settings, restored on exit.

    Only settings that differ are entered; a few microseconds if none does. No mesh is set, since
    the engine's arrays carry their shardings. The matmul precision is the process's, not the
    thread's; EXACT if the process sets none.
    """

    __slots__ = ("_entered",)

    def __enter__(self) -> None:
        self._entered: list[AbstractContextManager[Any]] = []  # an ExitStack would be slower
        given = _values(jax.config)
        try:
            if given not in (_USUAL, _ENTERED):
                for name in _foreign(given):
                    self._enter(_manager(name)(OWN[name][0]))
            if not jax.sharding.get_abstract_mesh().empty:
                self._enter(jax.set_mesh(None))
            if _precision.value != (wanted := matmul_precision()):
                self._enter(_precision(wanted))
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *error: object) -> None:
        while self._entered:
            self._entered.pop().__exit__(None, None, None)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap a function to run in its own context at each call."""

        @wraps(function)
        def inside(*args: P.args, **named: P.kwargs) -> R:
            with engine_context():
                return function(*args, **named)

        return inside

    def _enter(self, context: AbstractContextManager[Any]) -> None:
        context.__enter__()
        self._entered.append(context)


def matmul_precision() -> str:
    """Precision of the engine's matmuls: the process's jax_default_matmul_precision, or EXACT."""
    return _precision.get_global() or EXACT


def foreign_settings() -> dict[str, Any]:
    """This thread's JAX settings that the engine overrides, by JAX's name."""
    return {name: getattr(jax.config, name) for name in _foreign(_values(jax.config))}


@lru_cache(64)
def _foreign(given: tuple[Any, ...]) -> tuple[str, ...]:
    """Names of settings whose value is not one of the engine's."""
    return tuple(name for name, value in zip(OWN, given, strict=True) if value not in OWN[name])


def _manager(name: str) -> Callable[[Any], AbstractContextManager[Any]]:
    """JAX's context manager that sets this option for a thread."""
    return getattr(jax, name.removeprefix("jax_"))
