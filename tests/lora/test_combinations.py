"""Adapters together with other features, and many more of them than a step has room for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jengine
from jengine import LoRARequest, Patch, SamplingParams, Steer
from jengine.errors import RequestError
from jengine.weights.folder import read_model_config
from tests.api.draft_heads import write_heads
from tests.api.engines import is_idle, tiny_engine
from tests.lora.adapters import ATTENTION, MLP, RECURRENT, write_adapter, write_merged
from tests.lora.engines import (
    GREEDY,
    PLAIN,
    PROMPTS,
    SETTINGS,
    Expected,
    Models,
    Setup,
    check,
    merged_answers,
    models_of,
)
from tests.models.tiny_models import write_tiny_native
from tests.weights.quantized_models import LAYOUTS, write_quantized

NAMES: list[str | None] = ["all", None, "queries", "mlp"]
DRAFTS: dict[str, Any] = {
    "method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False,
}  # fmt: skip
LONGER = replace(GREEDY, max_tokens=16)
MANY = 200
# Each builds an engine of its own.
pytestmark = pytest.mark.slow


def drawn_adapter(number: int) -> dict[str, Any]:
    """Matrices for two weights of the tiny model."""
    draw = np.random.default_rng(number)

    def pair(inputs: int, outputs: tuple[int, ...]) -> dict[str, np.ndarray]:
        return {"a": draw.normal(0, 0.3, (inputs, 2)), "b": draw.normal(0, 0.3, (2, *outputs))}

    return {"layers": {"0": {"mlp": {"down": pair(48, (32,))}}, "1": {"mlp": {
        "gate_up": pair(32, (2, 48))}}}}  # fmt: skip


def drafts_for(base: Path, folder: Path, method: str) -> Path:
    """A model that drafts, with random weights."""
    if method == "draft_model":
        return write_tiny_native(folder, "mistral", seed=3)
    folder.mkdir(exist_ok=True)
    return write_heads(folder, method, base, vocab_size=read_model_config(base).vocab_size)


def test_200_adapters_through_8_slots(models: Models) -> None:
    short = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
    loras = [LoRARequest(f"a{number}", number) for number in range(1, MANY + 1)]
    with tiny_engine(models.base, **{**SETTINGS, "max_loras": 8}) as llm:
        for lora in loras:
            assert llm.add_lora(lora, drawn_adapter(lora.lora_int_id))
        prompts = [PROMPTS[number % 4] for number in range(MANY)]
        together = llm.generate(prompts, short, use_tqdm=False, lora_request=loras)
        assert is_idle(llm)
        seen = set()
        for index in (0, 7, 8, 100, 199):
            (alone,) = llm.generate(
                [prompts[index]], short, use_tqdm=False, lora_request=loras[index]
            )
            assert alone.outputs[0].token_ids == together[index].outputs[0].token_ids
        for output in together:
            seen.add(tuple(output.outputs[0].token_ids))
        assert len(seen) > MANY // 2, "adapters make a difference"


@pytest.mark.parametrize("layout", ["W4A16 group", "W8A16 channel", "FP8 block", "GPTQ 4"])
def test_on_quantized_weights(tmp_path: Path, layout: str) -> None:
    """As merged into the plain weights that the quantized ones stand for."""
    quantized, plain = write_quantized(tmp_path, "llama", LAYOUTS[layout])
    models = models_of(plain, tmp_path)
    expected = merged_answers(models)
    with tiny_engine(quantized, **{**SETTINGS, "max_loras": 3}) as llm:
        for names in (NAMES, [None] * 4):
            check(Setup(llm, models).answer(names), names, expected)


@pytest.mark.parametrize("method", ["ngram", "eagle", "medusa", "draft_model"])
def test_with_drafts_the_tokens_are_the_same(
    models: Models, expected: Expected, tmp_path: Path, method: str
) -> None:
    """Heads read the hidden states of the adapted model."""
    drafts = {**DRAFTS, "method": method}
    if method != "ngram":
        del drafts["prompt_lookup_min"]
        drafts["model"] = str(drafts_for(models.base, tmp_path, method))
    settings = {**SETTINGS, "max_loras": 3, "speculative_config": drafts}
    compilation = {"decode_rows": [32]}
    with tiny_engine(models.base, **settings, compilation_config=compilation) as llm:
        outputs = Setup(llm, models).answer(NAMES)
        assert llm.stats().drafts.drafted
    check(outputs, NAMES, expected)


@pytest.mark.parametrize(
    ("family", "method"),
    [
        ("lfm2", "ngram"),
        ("bamba", "ngram"),
        ("falcon_h1", "ngram"),
        ("bamba", "eagle"),
        ("qwen3_next", "eagle3"),
    ],
)
def test_drafts_for_adapters_of_recurrent_layers(family: str, method: str, tmp_path: Path) -> None:
    """States advance by the adapted projections of the tokens that count, each row by its own."""
    base = write_tiny_native(tmp_path / "base", family, vocab_size=128)
    added = write_adapter(tmp_path / "a", base, RECURRENT[family])
    merged = write_merged(tmp_path / "m", base, {key: 2.0 * one for key, one in added.items()})
    small = {**PLAIN, "mamba_block_size": 32}
    expected: Expected = {}
    for name, folder in (("a", merged), (None, base)):
        with tiny_engine(folder, **small) as llm:
            expected[name] = llm.generate(PROMPTS, LONGER, use_tqdm=False)
    drafts = {**DRAFTS, "method": method}
    if method != "ngram":
        drafts = {**drafts, "model": str(drafts_for(base, tmp_path / "heads", method))}
        del drafts["prompt_lookup_min"]
    settings = {"enable_lora": True, "max_lora_rank": 8, "speculative_config": drafts}
    compilation = {"decode_rows": [32]}
    names = ["a", None, "a", None]
    with tiny_engine(base, **small, **settings, compilation_config=compilation) as llm:
        lora = LoRARequest("a", 1, str(tmp_path / "a"))
        loras = [lora if name else None for name in names]
        for _ in range(2):  # the second time from snapshots
            outputs = llm.generate(PROMPTS, LONGER, use_tqdm=False, lora_request=loras)
            check(outputs, names, expected)
        assert llm.stats().drafts.drafted > 0
        assert llm.stats().prefix_hits > 0


def test_several_steps_in_one_call(models: Models, expected: Expected) -> None:
    settings = {**SETTINGS, "max_loras": 3, "num_scheduler_steps": 4}
    with tiny_engine(models.base, **settings) as llm:
        check(Setup(llm, models).answer(NAMES), NAMES, expected)


def test_arrays_of_interventions_beside_those_of_adapters(models: Models) -> None:
    vector = np.linspace(-1, 1, 32)
    changes = {"layers.0.output": Steer(vector), "layers.1.mlp": Patch(vector, [2, 4])}
    with tiny_engine(models.merged["all"], **PLAIN) as llm:
        expected = llm.generate(PROMPTS, GREEDY, use_tqdm=False, intervene=changes)
    with tiny_engine(models.base, **{**SETTINGS, "max_loras": 3}) as llm:
        loras = [models.adapters[name] for name in ("all", "mlp", "all", "queries")]
        outputs = llm.generate(
            PROMPTS, GREEDY, use_tqdm=False, lora_request=loras, intervene=changes
        )
    for index in (0, 2):
        assert outputs[index].outputs[0].token_ids == expected[index].outputs[0].token_ids


@pytest.mark.parametrize("backend", ["auto", "xla"])
def test_deterministic_an_answer_has_the_same_bits_in_any_batch(
    models: Models, backend: str
) -> None:
    settings = {**SETTINGS, "max_loras": 3, "deterministic": True, "attention_backend": backend}
    llm = jengine.LLM(
        models.base, skip_tokenizer_init=True, max_num_seqs=4, enforce_eager=True,
        max_num_batched_tokens=128, **settings,
    )  # fmt: skip
    with llm:
        made = Setup(llm, models)
        together = made.answer(NAMES)
        for prompt, name, output in zip(PROMPTS, NAMES, together, strict=True):
            (alone,) = made.answer([name], [prompt])
            assert bits(alone) == bits(output)


def bits(output: Any) -> list[Any]:
    answer = output.outputs[0]
    return [answer.token_ids, [[one.logprob for one in row.values()] for row in answer.logprobs]]


def test_the_xla_form_answers_as_the_kernels(models: Models, expected: Expected) -> None:
    settings = {**SETTINGS, "max_loras": 3, "attention_backend": "xla"}
    with tiny_engine(models.base, **settings) as llm:
        check(Setup(llm, models).answer(NAMES), NAMES, expected)


def test_the_core_may_be_in_a_process_of_its_own(models: Models, expected: Expected) -> None:
    with tiny_engine(models.base, **SETTINGS, multiprocess=True) as llm:
        made = Setup(llm, models)
        check(made.answer(NAMES), NAMES, expected)
        live = LoRARequest("live", 90)
        assert llm.add_lora(live, drawn_adapter(1))
        llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=live)
        gone = LoRARequest("gone", 91, "/no/such/folder")
        with pytest.raises(RequestError, match=r"gone.*no folder"):
            llm.generate(PROMPTS, GREEDY, use_tqdm=False, lora_request=gone)
        assert llm.remove_lora(90)
        check(made.answer(["all"] * 4), ["all"] * 4, expected)


@pytest.mark.parametrize("family", ["qwen3", "phi3", "mixtral", "gemma2", "gemma4", "deepseek_v2"])
def test_other_families_answer_as_their_merged_models(family: str, tmp_path: Path) -> None:
    targets = {
        "phi3": ("qkv_proj", "o_proj", "gate_up_proj"),
        "mixtral": ATTENTION,
        "deepseek_v2": ("q_proj", "kv_a_proj_with_mqa", "o_proj"),
    }
    more = {"pad_token_id": 0} if family == "phi3" else {}
    base = write_tiny_native(tmp_path / "base", family, **more)
    added = write_adapter(tmp_path / "a", base, targets.get(family, (*ATTENTION, *MLP)))
    merged = write_merged(tmp_path / "m", base, {key: 2.0 * one for key, one in added.items()})
    prompts = PROMPTS[:2]
    small = {"dtype": "float32", "max_model_len": 128}
    with tiny_engine(merged, **small) as llm:
        wanted = llm.generate(prompts, GREEDY, use_tqdm=False)
        plain = llm.engine.model
    with tiny_engine(base, **small, enable_lora=True, max_lora_rank=8) as llm:
        assert llm.engine.model.layers == plain.layers
        lora = LoRARequest("a", 1, str(tmp_path / "a"))
        outputs = llm.generate(prompts, GREEDY, use_tqdm=False, lora_request=lora)
    check(outputs, ["a"] * 2, {"a": wanted * 2})


def test_quantized_weights_have_adapters_too(models: Models) -> None:
    """By the CPU's kernels as by XLA."""
    found = []
    for backend in ("auto", "xla"):
        settings = {**SETTINGS, "max_loras": 3, "attention_backend": backend}
        with tiny_engine(models.base, **settings, quantization="int8") as llm:
            found.append(Setup(llm, models).answer(NAMES))
    for ours, theirs in zip(*found, strict=True):
        assert ours.outputs[0].token_ids == theirs.outputs[0].token_ids
