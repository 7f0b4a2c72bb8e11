"""Remarks of the comparison on settings that only jengine's side has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jengine.models.quantized import with_quantization
from jengine.models.registry import model_config
from jengine.research.compare import notes
from tests.models.tiny_models import FAMILIES, tiny_settings

PLAIN = model_config({**tiny_settings("llama"), "architectures": [FAMILIES["llama"]]})
REFERENCE: Any = SimpleNamespace(
    dtype="bfloat16", truth_dtype="float32", prompts=[[1] * 5000], columns=[]
)


def test_rounded_weights_and_caches_are_named() -> None:
    plain = " ".join(notes(PLAIN, REFERENCE))
    assert "not of rounding weights" in plain and "keys and values" not in plain
    rounded = " ".join(notes(with_quantization(PLAIN, "int4"), REFERENCE, "int8"))
    assert "what int4 costs" in rounded and "not of rounding weights" not in rounded
    assert "keeps keys and values in int8" in rounded
