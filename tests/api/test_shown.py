"""What editors and other processes are shown of an engine."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import fields
from typing import Any

import pytest

from jengine import LLM, AsyncLLM, EngineArgs, LLMEngine

KINDS = (LLM, AsyncLLM, LLMEngine)


@pytest.mark.parametrize("kind", KINDS)
def test_the_signature_has_every_setting(kind: Any) -> None:
    known = inspect.signature(kind).parameters
    assert next(iter(known)) == "model"
    assert set(known) == {one.name for one in fields(EngineArgs)}
    assert known["max_num_seqs"].kind is inspect.Parameter.KEYWORD_ONLY
    assert str(known["max_num_seqs"]) == "max_num_seqs: int | None = None"
    assert "Setting(" not in str(inspect.signature(kind))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("use", [pickle.dumps, copy.copy, copy.deepcopy])
def test_an_engine_says_why_it_cannot_be_pickled(kind: Any, use: Any) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__} cannot be pickled .*\.save\(folder\)"):
        use(kind.__new__(kind))
