"""`collective_rpc`: calls in every process that runs steps. No jax.

In: a registered name with its arguments, or a function if steps run in this process. Out: one
result per process, or per data-parallel replica. Code is never sent to another process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from jengine.api.front import Front
from jengine.assembly.engine import Engine
from jengine.engine.questions import ReloadWeights
from jengine.errors import RequestError
from jengine.executor.calls import CALLS

T = TypeVar("T")
RELOAD = "reload_weights"


def collective_rpc(
    front: Front,
    method: str | Callable[..., Any],
    timeout: float | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
) -> list[Any]:
    """Call a method or function in every worker between two steps; returns the results by rank."""
    named = dict(kwargs or {})
    if method == RELOAD and not (args or kwargs):  # as in scripts for vLLM
        return within(timeout, RELOAD, lambda: [front.client.ask(ReloadWeights())])
    if isinstance(method, str):
        arguments = {**by_name(method, args), **named}
        return within(timeout, method, lambda: front.call_workers(method, arguments))
    if not callable(method):
        raise RequestError(
            f"collective_rpc: method is a {type(method).__name__}; expected a registered name "
            f"({', '.join(CALLS)}) or a function."
        )
    return within(timeout, str(method), lambda: in_every_runner(front.engine, method, args, named))


def in_every_runner(
    engine: Engine, method: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """Call a function with the runner of each replica, all of which must be in this process."""
    runners = engine.runners
    return engine.in_process.between_steps(
        lambda: [method(runner, *args, **kwargs) for runner in runners]
    )


def by_name(method: str, args: Sequence[Any]) -> dict[str, Any]:
    """Convert positional arguments to keywords."""
    if not args or method not in CALLS:
        return {}  # an unknown name is refused later
    names = CALLS[method].arguments.__struct_fields__
    if len(args) > len(names):
        raise RequestError(
            f"collective_rpc({method!r}): given {len(args)} arguments; expected at most "
            f"{len(names)}: {', '.join(names) or 'it takes none'}."
        )
    return dict(zip(names, args, strict=False))


def within(timeout: float | None, name: str, call: Callable[[], T]) -> T:
    """Return a call's result. TimeoutError after `timeout` seconds; the call itself continues."""
    if timeout is None:
        return call()
    arrived: Future[T] = Future()

    def run() -> None:
        try:
            arrived.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            arrived.set_exception(error)

    threading.Thread(target=run, name="jengine-rpc", daemon=True).start()
    try:
        return arrived.result(timeout)
    except TimeoutError as error:
        if arrived.done():
            raise
        raise TimeoutError(
            f"collective_rpc({name!r}) was not answered within {timeout:g} s. It still runs; give "
            "a larger timeout, or none."
        ) from error
