"""Greedy tokens and log-probabilities equal transformers', family by family, in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import SamplingParams
from jengine.runner.variants.features import Features
from jengine.sampling.features import SamplingFeatures
from tests.api.engines import random_prompts, tiny_engine
from tests.models.tiny_models import LLAMA3_ROPE, write_tiny

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama, tied, llama3 rope": (
        "llama",
        {"tie_word_embeddings": True, "rope_parameters": LLAMA3_ROPE},
    ),
    "mistral with a window": ("mistral", {"sliding_window": 16}),
    "qwen2 with biases": ("qwen2", {}),
    "qwen3 with normed heads": ("qwen3", {}),
}
LENGTHS = (1, 2, 15, 16, 17, 31, 33, 100, 255, 256, 257, 700)
NEW_TOKENS = 20
TOP = 4
CLOSE = 1e-4  # logits nearer than this may swap places


SLOW = {"llama", "qwen2 with biases", "mistral with a window", "qwen3 with normed heads"}
PARAMS = [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]


@pytest.fixture(params=PARAMS, scope="module")
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[jengine.LLM, Any]:
    """An engine, and transformers' model of the same folder."""
    transformers = pytest.importorskip("transformers")
    family, overrides = CASES[request.param]
    folder = write_tiny(
        tmp_path_factory.mktemp("oracle"), family, max_position_embeddings=1024, **overrides
    )
    # One lean variant for everything here: greedy, with log-probabilities, prompts scored.
    lean = Features(SamplingFeatures(logprobs=TOP), prompt_logprobs=TOP)
    with pytest.MonkeyPatch.context() as patch:
        programs = "jengine.assembly.sizes.step_programs"
        patch.setattr(f"{programs}.variants", lambda *_, **__: {"lean": lean})
        llm = tiny_engine(Path(folder), "lean")
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", dtype="float32"
    )
    return llm, oracle.eval()


def oracle_logprobs(oracle: Any, tokens: list[int]) -> np.ndarray:
    """log_softmax after each token, [tokens, vocabulary]."""
    import torch

    with torch.no_grad():
        logits = oracle(torch.tensor([tokens])).logits[0]
        return torch.log_softmax(logits.double(), dim=-1).numpy()


def oracle_greedy(oracle: Any, prompt: list[int]) -> list[int]:
    import torch

    with torch.no_grad():
        tokens = oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tokens[0, len(prompt) :].tolist()


def check_tables(tables: list[Any], expected: np.ndarray, chosen: list[int]) -> None:
    """Each table holds the chosen token and the best ones, with transformers' values and ranks."""
    for table, scores, token in zip(tables, expected, chosen, strict=True):
        assert next(iter(table)) == token
        assert len(table) in (TOP, TOP + 1)
        for other, entry in table.items():
            assert entry.logprob == pytest.approx(scores[other], abs=CLOSE)
        best = np.sort(scores)[::-1][:TOP]
        given = sorted((entry.logprob for entry in table.values()), reverse=True)[:TOP]
        np.testing.assert_allclose(given, best, atol=CLOSE)
        above = int((scores > scores[token] + CLOSE).sum())
        near = int((scores >= scores[token] - CLOSE).sum())
        assert above < table[token].rank <= near


def test_tokens_and_logprobs_equal_transformers(pair: tuple[jengine.LLM, Any]) -> None:
    llm, oracle = pair
    prompts = random_prompts(*LENGTHS, seed=8)
    params = SamplingParams(
        temperature=0,
        max_tokens=NEW_TOKENS,
        ignore_eos=True,
        logprobs=TOP,
        prompt_logprobs=TOP,
    )
    compared = 0
    for prompt, output in zip(prompts, llm.generate(prompts, params), strict=True):
        ours = output.outputs[0].token_ids
        scores = oracle_logprobs(oracle, prompt + ours)
        assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
        check_tables(output.prompt_logprobs[1:], scores[: len(prompt) - 1], prompt[1:])
        given = output.outputs[0].logprobs
        assert given is not None
        check_tables(given, scores[len(prompt) - 1 : -1], ours)
        # Both texts are the same up to a near tie, behind which they may part.
        two_best = np.sort(scores[len(prompt) - 1 : -1], axis=-1)[:, -2:]
        ties = np.flatnonzero(two_best[:, 1] - two_best[:, 0] < CLOSE)
        sure = int(ties[0]) if len(ties) else NEW_TOKENS
        assert ours[:sure] == oracle_greedy(oracle, prompt)[:sure]
        compared += sure
    assert compared >= 0.95 * NEW_TOKENS * len(prompts), "near ties should be rare"
