"""Recurrent layers answer the same with heads or channels on several devices, and in stages."""

from __future__ import annotations

from pathlib import Path

import pytest

from jengine import SamplingParams
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.scheduler.drafting import Drafting
from jengine.scheduler.guesses import HostGuesses
from tests.api.engines import answers, rebuilt, tiny_engine
from tests.api.guess_heads import write_heads
from tests.api.test_speculation import AnswerProposer, drafts_of
from tests.models.tiny_models import write_tiny_native
from tests.sharding.eight_devices.test_tensor_parallel import PROMPTS

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SPLITS = [(2, 1), (4, 1), (1, 2), (2, 2)]  # devices that share each layer, stages


@pytest.mark.parametrize(
    ("family", "splits"),
    [
        ("bamba", SPLITS[1:2]),
        *(
            pytest.param(family, SPLITS, marks=pytest.mark.slow)
            for family in ("lfm2", "bamba", "qwen3_next", "falcon_h1")
        ),
    ],
)
def test_same_tokens_on_several_devices(
    family: str, splits: list[tuple[int, int]], tmp_path: Path
) -> None:
    folder = write_tiny_native(tmp_path, family, vocab_size=128, max_position_embeddings=1024)
    settings = {"mamba_block_size": 32, "max_logprobs": 2}
    with tiny_engine(folder, **settings) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
    for tensor, stages in splits:
        sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
        with tiny_engine(folder, **settings, **sizes) as llm:
            assert answers(llm.generate(PROMPTS, PARAMS)) == expected, sizes
            assert answers(llm.generate(PROMPTS, PARAMS)) == expected, sizes
            assert llm.stats().prefix_hits > 0
            with rebuilt(llm, num_blocks=15) as small:
                assert answers(small.generate(PROMPTS, PARAMS)) == expected, sizes


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2", "bamba", "qwen3_next"])
def test_drafts_give_the_same_tokens_on_several_devices(family: str, tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, family, vocab_size=128, max_position_embeddings=1024)
    method = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    sizes = {"decode_rows": [32]}
    settings = {"mamba_block_size": 32, "compilation_config": sizes, "speculative_config": method}
    with tiny_engine(folder, **settings, tensor_parallel_size=2) as llm:
        with rebuilt(llm, speculative=None) as plain:
            expected = answers(plain.generate(PROMPTS, PARAMS))
        texts = [[*prompt, *found[0]] for prompt, found in zip(PROMPTS, expected, strict=True)]

        def drafting(cache: CacheCoordinator) -> Drafting:
            source = HostGuesses(AnswerProposer(texts, 3))
            return Drafting(source, cache, most=3, most_rows=32, adaptive=False)

        with rebuilt(llm, lengthening=drafting) as guessing:
            assert answers(guessing.generate(PROMPTS, PARAMS)) == expected
            assert 0 < drafts_of(guessing).accepted < drafts_of(guessing).drafted


@pytest.mark.slow
@pytest.mark.parametrize(("family", "method"), [("lfm2", "suffix"), ("bamba", "eagle3")])
def test_drafts_give_the_same_tokens_in_two_replicas(
    family: str, method: str, tmp_path: Path
) -> None:
    sizes = {"vocab_size": 128, "max_position_embeddings": 1024}
    folder = write_tiny_native(tmp_path / "model", family, **sizes)
    settings = {"mamba_block_size": 32, "compilation_config": {"decode_rows": [32]}}
    with tiny_engine(folder, **settings) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
    drafts = {"method": method, "num_speculative_tokens": 2, "adaptive": False}
    if method == "eagle3":
        (tmp_path / "heads").mkdir()
        drafts["model"] = str(write_heads(tmp_path / "heads", method, folder))
    with tiny_engine(folder, **settings, speculative_config=drafts, data_parallel_size=2) as llm:
        for _ in range(2):  # the second time from the prefix cache, and with past outputs
            assert answers(llm.generate(PROMPTS, PARAMS)) == expected
        stats = llm.stats()
        assert stats.drafts.drafted > 0 and stats.prefix_hits > 0
        assert all(one.drafts.drafted > 0 for one in stats.replicas)
