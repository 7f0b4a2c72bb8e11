"""Which programs of the output head an engine with adapters has."""

from __future__ import annotations

import jengine
from jengine.runner.variants.buckets import Slots
from jengine.runner.variants.parts import Part
from jengine.runner.variants.program_list import of_part
from tests.api.engines import SMALL_DEMO


def test_no_head_is_compiled_twice_where_no_adapter_changes_it() -> None:
    with jengine.LLM("demo", skip_tokenizer_init=True, enable_lora=True, **SMALL_DEMO) as llm:
        programs = llm.engine.loaded.programs
        assert any(tier.adapters for tier in programs.tiers)
        heads = of_part(programs.tiers, Part.SAMPLE)
        texts = [programs.compiler.lower(Slots(4), head).as_text() for head in heads]
        assert len(set(texts)) == len(texts) > 1
