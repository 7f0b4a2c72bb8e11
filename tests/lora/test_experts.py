"""Adapters of experts: answers are those of the model with the adapter merged into its experts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import jengine
from jengine import LoRARequest, SamplingParams
from jengine.weights.safetensors_io import load_model
from tests.api.engines import random_prompts, tiny_engine
from tests.lora.adapters import ATTENTION, MLP, write_adapter, write_merged, write_stacked
from tests.marks import slow
from tests.models.plain_logits import plain_logits
from tests.models.tiny_models import write_tiny_native
from tests.weights.quantized_models import LAYOUTS, write_quantized

PROMPTS = random_prompts(5, 40, 17, 29)
SCORED = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0, prompt_logprobs=0)
SETTINGS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 128, "enable_lora": True, "max_loras": 2,
    "max_lora_rank": 4,
}  # fmt: skip
BOTH = ("gate_up_proj", "down_proj")
# By family: modules of one adapter of rank 4, and parameters of another one of rank 2.
FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mixtral": (("q_proj", "gate", "0.w1", "2.w1", "w2", "w3"), ()),
    "qwen3_moe": ((*ATTENTION, "gate_proj", "up_proj"), BOTH),
    "deepseek_v3": (("mlp.gate", *MLP), BOTH[1:]),
    "gpt_oss": (("router", "q_proj"), BOTH),
    "llama4": (("router", "shared_expert.down_proj"), BOTH),
}


class Adapted:
    """A model, adapters for it, and models with each of them merged, by name."""

    def __init__(self, base: Path, folder: Path, family: str) -> None:
        modules, parameters = FAMILIES[family]
        added = {"apart": write_adapter(folder / "apart", base, modules, seed=1)}
        if parameters:
            added["stacked"] = write_stacked(folder / "stacked", base, parameters, seed=2)
        else:
            small = ("1.w1", "2.w2")
            added["stacked"] = write_adapter(folder / "stacked", base, small, r=2, lora_alpha=4)
        self.base, self.folders = base, {None: base}
        self.adapters: dict[str | None, LoRARequest | None] = {None: None}
        for number, (name, parts) in enumerate(added.items(), start=1):
            scaled = {key: 2.0 * part for key, part in parts.items()}  # alpha / r
            self.folders[name] = write_merged(folder / f"merged-{name}", base, scaled)
            self.adapters[name] = LoRARequest(name, number, str(folder / name))

    def answer(
        self, llm: jengine.LLM, names: Sequence[str | None], prompts: Any = PROMPTS
    ) -> list[Any]:
        loras = [self.adapters[name] for name in names]
        return llm.generate(prompts, SCORED, use_tqdm=False, lora_request=loras)

    def check(self, outputs: Sequence[Any], names: Sequence[str | None], error: float) -> None:
        """Compare every log-probability with the merged model's."""
        models = {name: load_model(self.folders[name]) for name in set(names)}
        for output, name in zip(outputs, names, strict=True):
            tokens, found = scores_of(output)
            logits = jax.nn.log_softmax(plain_logits(models[name], tokens))
            truth = np.asarray(logits)[np.arange(len(tokens) - 1), tokens[1:]]
            np.testing.assert_allclose(found, truth, atol=error, err_msg=str(name))


def scores_of(output: Any) -> tuple[np.ndarray, np.ndarray]:
    """All tokens of a request, and the log-probability of each but the first."""
    answer = output.outputs[0]
    entries = [*output.prompt_logprobs[1:], *answer.logprobs]
    tokens = [*output.prompt_token_ids, *answer.token_ids]
    own = [entry[token].logprob for entry, token in zip(entries, tokens[1:], strict=True)]
    return np.array(tokens), np.array(own)


NAMES = ["apart", None, "stacked", "apart"]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen3_moe", {}),
        *slow(
            ("gpt_oss", {}),
            ("mixtral", {}),
            ("deepseek_v3", {}),
            ("llama4", {}),
            ("qwen3_moe", {"attention_backend": "xla"}),
            ("mixtral", {"pack_weights": False}),
        ),
    ],
)
def test_rows_of_several_adapters_and_none(
    family: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Of different ranks, and one of them for every expert's matrices at once."""
    adapted = Adapted(write_tiny_native(tmp_path / "base", family), tmp_path, family)
    with tiny_engine(adapted.base, **SETTINGS, **settings) as llm:
        outputs = adapted.answer(llm, NAMES)
        alone = adapted.answer(llm, ["stacked"], PROMPTS[2:3])
    adapted.check(outputs, NAMES, 1e-4)
    different = {tuple(scores_of(output)[1][:4]) for output in outputs}
    assert len(different) == len(NAMES)
    assert np.array_equal(scores_of(outputs[2])[1], scores_of(alone[0])[1]), "whatever is beside"


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["W4A16 group", "W8A16 channel", "FP8 block"])
def test_experts_of_quantized_weights(layout: str, tmp_path: Path) -> None:
    """As merged into the plain weights that the quantized ones stand for."""
    quantized, plain = write_quantized(tmp_path, "qwen3_moe", LAYOUTS[layout])
    adapted = Adapted(plain, tmp_path, "qwen3_moe")
    with tiny_engine(quantized, **SETTINGS) as llm:
        adapted.check(adapted.answer(llm, NAMES), NAMES, 1e-4)
