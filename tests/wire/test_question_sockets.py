"""Questions and answers between processes."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from jengine.errors import ConfigError
from jengine.wire.doors import Door
from jengine.wire.question_sockets import Answerer, Asker, Refused

SECRET = b"s" * 32


class Question(msgspec.Struct, frozen=True, array_like=True):
    kind: str


def answered(question: Question) -> bytes:
    if question.kind == "refused":
        raise ConfigError("not this one")
    return {"known": b"data"}[question.kind]


def test_an_error_while_answering_ends_one_question_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    door = Door(f"ipc://{tmp_path}/door", SECRET)
    answerer, asker = Answerer(door, Question, answered), Asker(SECRET, 2**20)

    def ask(kind: str) -> bytes:
        return bytes(asker.ask(door.address, Question(kind), seconds=30))

    try:
        with caplog.at_level(logging.ERROR), pytest.raises(Refused, match="while answering"):
            ask("unknown")
        assert "KeyError: 'unknown'" in caplog.text
        with pytest.raises(Refused, match="not this one"):
            ask("refused")
        assert ask("known") == b"data"
    finally:
        asker.close()
        answerer.close()
