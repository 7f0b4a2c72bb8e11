"""Attention with slopes answers the same with heads on several devices, and in stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from jengine import SamplingParams
from jengine.errors import UnsupportedFeature
from tests.api.engines import answers, rebuilt, tiny_engine
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.same_answers import PROMPTS

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.mark.slow
def test_same_tokens_on_several_devices(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "bloom", vocab_size=128, max_position_embeddings=1024)
    with tiny_engine(folder) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
    for tensor, stages in [(2, 1), (4, 1), (1, 2)]:
        sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
        with tiny_engine(folder, **sizes) as llm:
            assert answers(llm.generate(PROMPTS, PARAMS)) == expected, sizes
            with rebuilt(llm, num_blocks=15) as small:
                assert answers(small.generate(PROMPTS, PARAMS)) == expected, sizes


def test_divided_contexts_are_refused_by_name(tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, "bloom", vocab_size=128, max_position_embeddings=1024)
    sizes = {"tensor_parallel_size": 2, "decode_context_parallel_size": 2}
    with pytest.raises(UnsupportedFeature, match="scores with slopes"):
        tiny_engine(folder, **sizes)
