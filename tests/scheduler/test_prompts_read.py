"""Prompts are hashed where they come in, and a waiting request keeps one compact copy."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import pytest

from jengine.engine.core import EngineCore
from jengine.engine.in_process import InProcessClient
from jengine.engine.questions import Settle
from jengine.kvcache.hashing import block_hash, block_hashes, root_hash
from jengine.request import WireRequest
from tests.scheduler.scheduler_loop import Loop, make_wire


def client_of(loop: Loop) -> InProcessClient:
    return InProcessClient(EngineCore(loop.scheduler, cast("Any", loop.executor), depth=1))


def big_loop() -> Loop:
    return Loop(blocks=4000, block_size=16, max_model_len=8000, max_num_batched_tokens=4096)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Blocks by the thread that hashed them."""
    found: dict[int, int] = {}

    def counted(parent: bytes, tokens: Sequence[int], size: int, extra: Any) -> list[bytes]:
        thread = threading.get_ident()
        found[thread] = found.get(thread, 0) + len(tokens) // size
        return block_hashes(parent, tokens, size, extra)

    monkeypatch.setattr("jengine.kvcache.contents.block_hashes", counted)
    return found


def test_the_thread_that_brings_a_prompt_hashes_it(hashed: dict[int, int]) -> None:
    loop = big_loop()
    client = client_of(loop)
    wires = [make_wire([*range(5000), end], f"r{end}", max_tokens=3) for end in (1, 2)]
    for wire in wires:
        thread = threading.Thread(target=client.add, args=(wire,))
        thread.start()
        thread.join()
    while client.has_work:
        client.outputs()
    mine = hashed.pop(threading.get_ident(), 0)
    assert sum(hashed.values()) == 2 * 312 and mine == 0, "answers fill no block"
    assert loop.cache.stats.hits == 4992


def test_hashes_of_weights_that_were_replaced_meanwhile_are_not_used(
    hashed: dict[int, int],
) -> None:
    loop = big_loop()
    read = loop.cache.read(wire := make_wire(100))
    loop.cache.set_weights_version(1)
    loop.scheduler.add(wire, read)
    loop.schedule()
    (request,) = loop.scheduler._requests.running
    assert request.block_hashes[0] == block_hash(root_hash(1), wire.prompt_token_ids[:16])
    assert hashed[threading.get_ident()] == 12


def test_a_waiting_request_takes_little_more_than_its_tokens() -> None:
    client = client_of(big_loop())
    wires = [
        msgspec.msgpack.encode(make_wire([300 + i % 7 + n for i in range(2000)], f"r{n}"))
        for n in range(40)
    ]
    for warm in wires[:2]:
        client.add(msgspec.msgpack.decode(warm, type=WireRequest))
    client.ask(Settle())
    tracemalloc.start()
    for wire in wires[2:]:
        client.add(msgspec.msgpack.decode(wire, type=WireRequest))
    client.ask(Settle())
    taken = tracemalloc.get_traced_memory()[0] / len(wires[2:])
    tracemalloc.stop()
    assert taken < 14_200, "tokens take 8,000 of them, hashes 4,000"
