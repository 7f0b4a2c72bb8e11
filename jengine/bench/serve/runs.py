"""Modes of `jengine bench serve`: one load, a comparison, or serving-path latency.

In: an order from the command line. Out: a result. A server is started where a model was named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from jengine.bench.serve import compare
from jengine.bench.serve.clock_model import IMPORT_PATH, ages, vocab_size_of
from jengine.bench.serve.launched import our_server, vllm_server
from jengine.bench.serve.load import ServedLoad
from jengine.bench.serve.measure import measure
from jengine.bench.serve.settings import LoadSettings
from jengine.client.address import is_url
from jengine.errors import ConfigError
from jengine.weights.resolve import resolve_model

AGAINST = ("engine", "vllm")
# Settings of ours that vLLM's server has under the same name.
VLLM_WORDS = ("dtype", "max_num_seqs", "max_model_len", "max_num_batched_tokens", "block_size")
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class RunOrder:
    """Parsed command line. `words` turns engine settings into flags."""

    settings: LoadSettings
    command: str
    model: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    words: Callable[[dict[str, Any]], Sequence[str]] = lambda _: ()
    against: str | None = None
    peer_python: str | None = None
    repeats: int = 3
    clock_ms: float | None = None


def run(order: RunOrder, note: Callable[[str], object]) -> dict[str, Any]:
    """Run the requested mode."""
    check(order)
    if order.clock_ms is not None:
        return clocked(order, note)
    if order.against is None:
        with served(order, dict(order.engine)) as settings:
            return measure(settings, order.command, note)
    # The same trace again and again must not be found in a cache.
    engine = {"enable_prefix_caching": False, **order.engine}
    order = replace(order, settings=compare.fixed_work(order.settings))
    with served(order, engine) as settings:
        challenge = opponent(order, settings, engine)
        return compare.compare(settings, order.command, order.repeats, challenge, note)


def check(order: RunOrder) -> None:
    """Raise ConfigError for incompatible options, before anything starts."""
    if order.model is not None and order.settings.base_url is not None:
        raise ConfigError("bench serve: expected a model to serve or --base-url, not both.")
    if order.clock_ms is not None and (order.model is None or order.against is not None):
        raise ConfigError("--clock-model: expected a model, whose server it starts, and no peer.")
    if order.clock_ms is not None and order.clock_ms < 0:
        raise ConfigError(f"--clock-model {order.clock_ms}: expected 0 or more milliseconds.")
    against = order.against
    if against is None or is_url(against):
        return
    if against not in AGAINST:
        raise ConfigError(
            f"--against {against!r}: expected {', '.join(AGAINST)} or the URL of a server."
        )
    if order.model is None:
        raise ConfigError(f"--against {against}: expected a model for both sides to run.")


@contextmanager
def served(order: RunOrder, engine: dict[str, Any]) -> Iterator[LoadSettings]:
    """Settings with the server's URL, starting a server if a model was named."""
    if order.model is None:
        yield order.settings
        return
    key = order.settings.api_key
    words = [*order.words(engine), *(["--api-key", key] if key else [])]
    with our_server(order.model, words) as url:
        yield replace(order.settings, base_url=url)


def opponent(order: RunOrder, settings: LoadSettings, engine: dict[str, Any]) -> compare.Challenge:
    """Returns a function that opens the opponent."""
    against = str(order.against)
    folder = str(resolve_model(order.model)) if order.model is not None else ""
    if against == "engine":
        return lambda work: compare.engine(folder, engine, work)
    if against == "vllm":
        words = [*order.words({k: v for k, v in engine.items() if k in VLLM_WORDS})]
        words += [] if engine["enable_prefix_caching"] else ["--no-enable-prefix-caching"]
        opened = vllm_server(folder, words, order.peer_python)
        return lambda work: compare.other_server(settings, opened, work)
    return lambda work: compare.other_server(settings, contextmanager(one)(against), work)


def one(url: str) -> Iterator[str]:
    """One load on a running server."""
    yield url


def clocked(order: RunOrder, note: Callable[[str], object]) -> dict[str, Any]:
    """One load on a server with the clock model, whose tokens encode their sampling time."""
    assert order.model is not None and order.clock_ms is not None
    vocab_size = vocab_size_of(resolve_model(order.model))
    seconds = order.clock_ms / 1e3
    engine = {
        "enable_prefix_caching": False,
        **order.engine,
        "executor": IMPORT_PATH,
        "executor_options": {"step_seconds": seconds},
    }
    body = {**order.settings.extra_body, "return_token_ids": True}
    order = replace(order, settings=replace(order.settings, ignore_eos=True, extra_body=body))
    with served(order, engine) as settings:
        return measure(settings, order.command, note, lambda load: added(load, vocab_size))


def added(load: ServedLoad, vocab_size: int) -> dict[str, Any]:
    """Latency of tokens from the end of their step to the client."""
    arrived = [
        pair
        for reply in load.replies
        if reply.success
        for pair in zip(reply.times, reply.token_ids, strict=True)
    ]
    found = np.array(ages(arrived, vocab_size))
    if not found.size:
        raise ConfigError("--clock-model: the server sent no token ids (return_token_ids).")
    shares = {f"p{one}": float(np.percentile(found, one)) for one in PERCENTILES}
    figures = {"mean": float(found.mean()), **shares, "max": float(found.max())}
    return {"added_latency_ms": {name: round(value, 2) for name, value in figures.items()}}
