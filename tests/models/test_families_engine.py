"""Families that bring something of their own answer in the engine as transformers does.

Prompts longer than a chunk and than the window, more requests than rows, shared prefixes, too few
blocks: through the paged cache everything must come out as in one dense pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jengine import LLM, SamplingParams
from tests.api.engines import answers, rebuilt
from tests.models.tiny_models import YARN, write_tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

NEW_TOKENS = 24
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("gemma2", {"attn_logit_softcapping": 4.0, "num_hidden_layers": 3}),
    "gemma3": ("gemma3", {"num_hidden_layers": 7, "layer_types": None}),
    "gemma4": ("gemma4", {}),
    "qwen3-moe": ("qwen3_moe", {"mlp_only_layers": [1], "num_hidden_layers": 3}),
    "gpt2": ("gpt2", {}),
    "deepseek-v2": ("deepseek_v2", {"rope_parameters": YARN, "q_lora_rank": None}),
    "deepseek-v3": ("deepseek_v3", {"rope_parameters": YARN}),
    "gpt-neox": ("gpt_neox", {}),
    "opt": ("opt", {}),
    "cohere2": ("cohere2", {}),
    "exaone4": ("exaone4", {}),
    "nemotron": ("nemotron", {}),
    "lfm2": ("lfm2", {}),
    "bamba": ("bamba", {}),
    "bloom": ("bloom", {}),
    "mpt": ("mpt", {"num_attention_heads": 3, "hidden_size": 36}),
    "falcon-h1": ("falcon_h1", {"mamba_rms_norm": True, "mamba_norm_before_gate": False}),
    "granite-hybrid": ("granite_hybrid", {"logits_scaling": 0.3, "residual_multiplier": 0.8}),
    "mamba2": ("mamba2", {}),
    "hunyuan": ("hunyuan", {}),
    "apertus": ("apertus", {}),
    "cohere-plus": ("cohere", {"use_qk_norm": True}),
    "nemotron-h": ("nemotron_h", {}),
    "qwen3-next": ("qwen3_next", {}),
    "gpt-oss": ("gpt_oss", {"num_hidden_layers": 3}),
    "glm4-moe": ("glm4_moe", {"num_hidden_layers": 3}),
    "llama4": ("llama4", {}),
    "llama4-chunks": ("llama4", {"attention_chunk_size": 48}),
    # Without factors that bring logits close to each other.
    "granite-moe": ("granite_moe_shared", {"logits_scaling": 0.3, "residual_multiplier": 0.8}),
}


def prompts() -> list[list[int]]:
    """Short, longer than a chunk of 64, and twice with the same beginning."""
    rng = np.random.default_rng(5)
    long = rng.integers(3, 97, 150).tolist()
    own = [rng.integers(3, 97, length).tolist() for length in (1, 2, 17, 63, 64, 65, 200)]
    return [*own, long, [*long[:100], 7, 8, 9], long]


def greedy(model: Any, prompt: list[int]) -> tuple[list[int], int]:
    """transformers' tokens, and how many of them are no near ties."""
    given = torch.tensor([prompt])
    made = model.generate(
        given,
        attention_mask=torch.ones_like(given),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=None,
        pad_token_id=0,
    )
    with torch.no_grad():
        best = model(made).logits[0, len(prompt) - 1 : -1].topk(2).values
    ties = (best[:, 0] - best[:, 1] < 1e-3).nonzero()
    return made[0, len(prompt) :].tolist(), int(ties[0]) if len(ties) else NEW_TOKENS


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_greedy_answers_equal_transformers(name: str, tmp_path: Path) -> None:
    family, overrides = CASES[name]
    folder = write_tiny(tmp_path, family, **overrides)
    llm = LLM(
        folder,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        max_num_seqs=4,
        mamba_block_size=32,
        compilation_config={"decode_rows": [4], "prefill_tokens": [64]},
    )
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    compared = 0
    outputs = llm.generate(prompts(), params)
    for prompt, output in zip(prompts(), outputs, strict=True):
        expected, sure = greedy(theirs, prompt)
        assert output.outputs[0].token_ids[:sure] == expected[:sure]
        compared += sure
    assert compared >= 0.9 * NEW_TOKENS * len(prompts()), "near ties should be rare"
    assert llm.stats().prefix_hits > 0

    # The longest request fits, and little more.
    with rebuilt(llm, num_blocks=18) as small:
        assert answers(small.generate(prompts(), params)) == answers(outputs)
        grows = any(group.spec.kind != "recurrent" for group in small.engine.cache.groups)
        assert small.stats().preemptions > 0 or not grows
