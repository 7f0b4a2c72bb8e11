"""JAX's ambient settings, and those under which everything of ours is traced and run.

JAX keeps them per process and per thread: whoever calls the engine has set some of them for code of
their own, and its threads see others than theirs. `engine_context` has one set in every thread. It
knows the names that JAX 0.10 to 0.12 give them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from operator import attrgetter
from typing import Any

import jax

# Setting -> the engine's value and, where it means the same, JAX's default. Not here, and so those
# of whoever traces: numpy_rank_promotion, as nothing of ours promotes ranks, and what JAX logs.
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


@contextmanager
def engine_context() -> Iterator[None]:
    """This thread's settings are the engine's; afterwards they are what they were.

    Enters only what differs: about two microseconds where nothing does. No mesh is set inside, as
    every array of ours says where it is. Matmuls have the precision of the process, if the thread
    has another one.
    """
    if _is_usual():
        yield
        return
    with ExitStack() as stack:
        for one in _own_settings():
            stack.enter_context(one)
        yield


def _is_usual() -> bool:
    """Whether this thread's settings are JAX's defaults, as in most programs."""
    precision = jax.default_matmul_precision
    return (
        _values(jax.config) == _USUAL
        and jax.sharding.get_abstract_mesh().empty
        and precision.value == precision.get_global()
    )


def foreign_settings() -> dict[str, Any]:
    """The settings of this thread that do not reach the engine, by JAX's name."""
    found = dict(zip(OWN, _values(jax.config), strict=True))
    return {name: value for name, value in found.items() if value not in OWN[name]}


def _own_settings() -> Iterator[AbstractContextManager[Any]]:
    """Context managers for all that is not the engine's."""
    for name in foreign_settings():
        manager = getattr(jax, name.removeprefix("jax_"))
        yield manager(OWN[name][0])
    if not jax.sharding.get_abstract_mesh().empty:
        yield jax.set_mesh(None)
    precision = jax.default_matmul_precision
    if precision.value != precision.get_global():
        yield precision(precision.get_global())
