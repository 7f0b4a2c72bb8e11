"""Whatever bytes come, between hosts as between processes, they are a message or a BadFrame."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jengine.distributed.joining import _from_desk, _from_host
from jengine.engine.process.to_core import decode_from_front
from jengine.engine.process.to_front import decode_from_core
from jengine.executor.multihost.messages import decode
from jengine.wire.message import BadFrame, Reader

READERS: list[Reader[Any]] = [decode, decode_from_front, decode_from_core, _from_host, _from_desk]
NESTED = msgspec.Raw(b"\x91" * 100_000 + b"\xc0")


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("given", [{}, ["Nobody"], ["Join", 5], ["Refused", b"\xff"], None])
def test_what_is_no_message_is_refused(read: Reader[Any], given: Any) -> None:
    with pytest.raises(BadFrame, match="that are no message"):
        read(msgspec.msgpack.encode(given))


@pytest.mark.parametrize(("read", "name"), [(decode, "StepDone"), (decode_from_core, "Outputs")])
def test_what_nests_too_deeply_is_refused(read: Reader[Any], name: str) -> None:
    delta = {"request_id": "a", "token_ids": [], "kv_transfer": {"a": NESTED}}
    message = {"StepDone": [name, [delta], []], "Outputs": [name, [delta]]}[name]
    with pytest.raises(BadFrame, match="recursion"):
        read(msgspec.msgpack.encode(message))


@pytest.mark.parametrize("read", READERS)
def test_what_is_too_long_is_refused(read: Reader[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "most_bytes", 9)
    with pytest.raises(BadFrame, match="expected at most 9"):
        read(b"x" * 10)
