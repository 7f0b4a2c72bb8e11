"""Latent attention through the paged cache equals latent attention over whole sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jengine import LLM, SamplingParams
from jengine.config import ModelConfig
from jengine.models.decoder import Decoder
from jengine.models.registry import model_config
from jengine.weights.dummy import dummy_model
from tests.api.engines import answers, rebuilt
from tests.models.plain_logits import plain_logits
from tests.models.tiny_models import FAMILIES, YARN, tiny_settings

SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [64], "variants": ["scored"]},
}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SCORED = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)  # reads no cached prefix


def tiny(**overrides: Any) -> ModelConfig:
    settings = tiny_settings("deepseek_v3", rope_parameters=YARN, **overrides)
    return model_config({**settings, "architectures": [FAMILIES["deepseek_v3"]]})


def prompts() -> list[list[int]]:
    """Longer than a chunk of 64 and than the window, and with the same beginning."""
    rng = np.random.default_rng(3)
    long = rng.integers(3, 97, 150).tolist()
    own = [rng.integers(3, 97, length).tolist() for length in (1, 5, 33, 64, 70)]
    return [*own, long, [*long[:100], 7, 8, 9], long]


def sure_tokens(model: Decoder, prompt: list[int], answer: list[int]) -> int:
    """How many tokens of the answer are the best ones, up to the first that is no clear choice."""
    logits = plain_logits(model, [*prompt, *answer])[len(prompt) - 1 : -1]
    best, second = np.sort(logits, axis=-1)[:, -1], np.sort(logits, axis=-1)[:, -2]
    ties = np.flatnonzero(best - second < 1e-3)
    sure = int(ties[0]) if len(ties) else len(answer)
    assert answer[:sure] == logits.argmax(-1)[:sure].tolist()
    return sure


@pytest.mark.slow
def test_windows_are_those_of_other_caches() -> None:
    """One layer with a window, whose blocks are given back, and one without; few blocks."""
    config = tiny()
    first, second = config.layers
    windowed = replace(first, mixer=replace(first.mixer, window=9))
    config = replace(config, layers=(windowed, second))
    assert [spec.keeps_all for spec in config.cache_specs] == [False, True]
    model = dummy_model(config, seed=1)
    with LLM(model, **SETTINGS) as llm:
        outputs = llm.generate(prompts(), GREEDY)
        answered = [output.outputs[0].token_ids for output in outputs]
        sure = [sure_tokens(model, *pair) for pair in zip(prompts(), answered, strict=True)]
        assert sum(sure) > 0.9 * 12 * len(sure), "near ties should be rare"
        assert llm.stats().prefix_hits > 0
        with rebuilt(llm, num_blocks=18) as small:
            assert answers(small.generate(prompts(), GREEDY)) == answers(outputs)
            assert small.stats().preemptions > 0


@pytest.mark.slow
def test_entries_of_bfloat16() -> None:
    """The CPU holds their bits as integers; scores stay close to those of whole sequences."""
    model = dummy_model(tiny(initializer_range=0.1, dtype="bfloat16"), seed=1)
    prompt = prompts()[5]
    exact = plain_logits(model, prompt)
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    with LLM(model, **SETTINGS) as llm:
        assert llm.engine.loaded.state.caches[0].shape[::3] == (2, 28)  # layers, numbers
        assert llm.engine.loaded.state.caches[0].dtype == np.uint16
        scored = llm.generate([prompt], SCORED)[0].prompt_logprobs
    found = [scored[i][token].logprob for i, token in enumerate(prompt) if i]
    wanted = [exact[i - 1, token] for i, token in enumerate(prompt) if i]
    assert np.abs(np.subtract(found, wanted)).max() < 0.05
