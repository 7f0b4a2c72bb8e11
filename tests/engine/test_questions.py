"""Questions to a core: each can be sent, and its answer read."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from jengine.engine.questions import (
    AnyQuestion,
    AskStats,
    CoreOrder,
    CoreQuestion,
    ResetPrefixCache,
    Settle,
)
from jengine.executor.calls import CALLS
from jengine.executor.local import RUN


def test_every_question_can_be_sent() -> None:
    def below(kind: type) -> set[type]:
        return {kind}.union(*map(below, kind.__subclasses__()))

    assert set(get_args(AnyQuestion)) == below(CoreQuestion) - {CoreQuestion, CoreOrder}


@pytest.mark.parametrize(
    ("question", "wrong"), [(ResetPrefixCache(), 7), (AskStats(), [1]), (Settle(), True)]
)
def test_an_answer_of_another_type_is_none(question: CoreQuestion[Any], wrong: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        question.read_answer(msgspec.msgpack.encode(wrong))


def test_every_call_of_a_worker_has_a_function() -> None:
    assert set(RUN) == {name for name, call in CALLS.items() if call.run is None}
