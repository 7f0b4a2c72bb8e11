"""What comes beside a plan enters the first stage with it, and is where its tokens are in later
ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import RequestOutput, SamplingParams
from jengine.errors import UnsupportedFeature
from tests.api.engines import answers, is_idle, random_prompts, rebuilt, tiny_engine
from tests.media.tiny_vision import BEGIN, CONFIGS, END, IMAGE, picture, prompt_of, write_vision
from tests.models.tiny_models import write_tiny_native

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
DRAWN = GREEDY.clone(temperature=0.8, seed=7, frequency_penalty=0.5)
STAGES: dict[str, Any] = {"pipeline_parallel_size": 2}
TEXTS = random_prompts(5, 40, 130, 64)


def same(found: Sequence[RequestOutput], expected: Sequence[RequestOutput]) -> None:
    """The same tokens, with log-probabilities as far as matmuls of other sizes round alike."""
    assert answers(found) == answers(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            one.outputs[0].cumulative_logprob, other.outputs[0].cumulative_logprob, atol=1e-4
        )


def same_in_every_way(
    folder: Path, prompts: Sequence[Any], params: Sequence[SamplingParams], sizes: dict[str, Any],
    **settings: Any,
) -> None:  # fmt: skip
    """In a batch, one by one, from the prefix cache, and in small chunks in a cache that is too
    small for all at once."""
    with tiny_engine(folder, **settings) as one:
        expected = one.generate(prompts, params)
    with tiny_engine(folder, **settings, **sizes) as llm:
        same(llm.generate(prompts, params), expected)
        again = llm.generate(prompts, params)
        same(again, expected)
        assert any(output.num_cached_tokens for output in again)
        llm.reset_prefix_cache()
        for prompt, own, truth in zip(prompts, params, expected, strict=True):
            same(llm.generate([prompt], own), [truth])
        assert is_idle(llm)
        with rebuilt(llm, num_blocks=20, max_num_batched_tokens=64) as small:
            same(small.generate(prompts, params), expected)
            assert small.stats().preemptions > 0


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of layers that do not divide by the stages."""
    folder = tmp_path_factory.mktemp("llama")
    return write_tiny_native(folder, "llama", num_hidden_layers=3, max_position_embeddings=1024)


@pytest.mark.parametrize(
    "sizes",
    [
        STAGES,
        pytest.param({**STAGES, "tensor_parallel_size": 2}, marks=pytest.mark.slow),
        pytest.param({"pipeline_parallel_size": 3}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_embeddings_as_prompts_beside_tokens(llama: Path, sizes: dict[str, Any]) -> None:
    with tiny_engine(llama) as llm:
        table = np.asarray(llm.engine.loaded.parameters()["embed.weight"], np.float32)
    rows: list[Any] = [{"prompt_embeds": 1.5 * table[prompt]} for prompt in TEXTS]
    prompts = [rows[0], TEXTS[1], rows[2], TEXTS[3], rows[1], rows[3]]
    params = [GREEDY, DRAWN, GREEDY, GREEDY, DRAWN, GREEDY]
    same_in_every_way(llama, prompts, params, sizes, enable_prompt_embeds=True)


PICTURES = [picture(30, 50), picture(64, 41), picture(20, 70)]
ONE = [BEGIN, IMAGE, END]


def of_four_layers(monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    name, config = CONFIGS[family]
    longer = {**config, "text_config": {**config["text_config"], "num_hidden_layers": 4}}
    monkeypatch.setitem(CONFIGS, family, (name, longer))


def seen(family: str) -> list[Any]:
    """Prompts with images, of which some are in two prompts; behind text, so that chunks end within
    them; and texts without."""
    text = [*range(3, 53)]
    ids = [[5, *ONE, 7], [*text, *ONE, 9, *ONE], [*ONE, *text], [8, *ONE, *text, *ONE, *ONE]]
    images = [PICTURES[:1], PICTURES[1:], PICTURES[:1], PICTURES]
    prompts: list[Any] = [
        {"prompt_token_ids": prompt_of(family, one), "multi_modal_data": {"image": own}}
        for one, own in zip(ids, images, strict=True)
    ]
    return [prompts[0], [*range(60, 3, -1)], *prompts[1:], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("family", "sizes"),
    [
        ("qwen2_vl", STAGES),
        ("gemma3", STAGES),
        *(
            pytest.param(family, {**STAGES, **more}, marks=pytest.mark.slow)
            for family, more in [
                ("llava", {}),
                ("internvl", {}),
                ("gemma4_ahead", {}),
                ("gemma4_ahead", {"pipeline_parallel_size": 4}),
                ("qwen2_vl", {"tensor_parallel_size": 2}),
                ("gemma3", {"tensor_parallel_size": 2}),
                ("gemma3", {"attention_backend": "xla"}),
                ("qwen2_5_vl", {"tensor_parallel_size": 2, "mm_encoder_tp_mode": "data"}),
            ]
        ),
    ],
)  # fmt: skip
def test_images_beside_texts(
    family: str, sizes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Qwen rotates by planes in every stage; Gemma's images see later tokens in every stage, which
    shows in layers before the last one."""
    if family == "gemma3":
        of_four_layers(monkeypatch, family)
    folder = write_vision(tmp_path, family)
    params = [GREEDY, GREEDY, DRAWN, GREEDY, DRAWN, GREEDY]
    same_in_every_way(folder, seen(family), params, sizes)


@pytest.mark.slow
def test_images_that_are_added_to_the_first_layers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which must be in the first stage."""
    of_four_layers(monkeypatch, "qwen3_vl")
    folder = write_vision(tmp_path, "qwen3_vl")
    params = [GREEDY, DRAWN, GREEDY, GREEDY, DRAWN, GREEDY]
    same_in_every_way(folder, seen("qwen3_vl"), params, STAGES)
    with pytest.raises(UnsupportedFeature, match="whose first stage has 1 of the 2 layers"):
        tiny_engine(folder, pipeline_parallel_size=4)


@pytest.mark.slow
def test_images_beside_embeddings_in_stages(tmp_path: Path) -> None:
    folder = write_vision(tmp_path, "gemma3")
    with tiny_engine(folder) as llm:
        table = np.asarray(llm.engine.loaded.parameters()["embed.weight"], np.float32)
    rows: list[Any] = [{"prompt_embeds": table[prompt]} for prompt in ([*range(3, 53)], [9] * 40)]
    prompts = [*rows, *seen("gemma3")]
    same_in_every_way(folder, prompts, [GREEDY] * 8, STAGES, enable_prompt_embeds=True)
