"""What is drawn of a random mix: an engine's settings, and its requests' features.

`mix_course` runs it and compares each answer with that of a plain engine, which answers the same
requests one by one, without overlap, drafts, cached prefixes or preemption.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, NamedTuple

import jengine
from jengine import LoRARequest, SamplingParams, StructuredOutputsParams
from jengine.models.registry import model_config
from jengine.weights.dummy import dummy_model
from tests.api.engines import VOCAB, WINDOW, tiny_engine
from tests.api.processor_functions import count_up
from tests.lora.adapters import ATTENTION, MLP, RECURRENT, write_adapter
from tests.models.tiny_models import FAMILIES, tiny_settings, write_tiny_native

MAX_MODEL_LEN = 256
# Families whose caches and layers differ, and what of their tiny models is changed.
MODELS: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": WINDOW}, "gemma3": {"sliding_window": WINDOW},
    "qwen3_moe": {}, "deepseek_v3": {}, "lfm2": {}, "bamba": {}, "qwen3_next": {}, "falcon_h1": {},
    "gpt_oss": {"sliding_window": WINDOW},
}  # fmt: skip
TARGETS = dict.fromkeys(("llama", "mistral", "gemma3"), (*ATTENTION, *MLP)) | RECURRENT
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
# Each is a choice between values of one setting; None leaves it at its default.
SETTINGS: dict[str, list[Any]] = {
    "enable_prefix_caching": [True, True, False],
    "max_num_seqs": [2, 5, 8],
    "max_num_batched_tokens": [64, 256],
    "long_prefill_token_threshold": [None, 48],
    "num_gpu_blocks_override": [None, 20, 40],
    "scheduling_policy": ["fcfs", "priority"],
    "async_scheduling": [None, False],
    "kv_offloading_size": [None, None, 0.01],
    "block_size": [None, 32],
    "multiprocess": [*[None] * 6, True],
}
LONGER: list[dict[str, Any]] = [
    {},
    {"speculative_config": NGRAM},
    {"speculative_config": {**NGRAM, "adaptive": False}},
    {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
    {"num_scheduler_steps": 4},
    {"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}},
]
FROM_FOLDER = 2  # the version of the parameters that are in the model's folder
DRAWN: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9},
    {"temperature": 1.3, "min_p": 0.05},
]
FEATURES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"presence_penalty": 0.7},
    {"logit_bias": {5: 2.0, 9: -3.0}},
    {"allowed_token_ids": list(range(2, 60))},
    {"bad_words": ["a", "bc", "Qr"]},
    {"min_tokens": 5},
    {"stop": ["e", "xy"]},
    {"stop": ["K"], "include_stop_str_in_output": True},
    {"stop_token_ids": [7, 9, 30]},
    {"ignore_eos": True},
    {"logprobs": 3},
    {"logprobs": 0, "flat_logprobs": True},
    {"logprob_token_ids": [4, 50]},
    {"prompt_logprobs": 2},
    {"skip_reading_prefix_cache": True},
    {"structured_outputs": {"regex": "[a-f]{3,9}"}},
    {"structured_outputs": {"choice": ["yes", "no", "never mind"]}},
    {"structured_outputs": {"json": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 4}}},
    {"repetition_detection": {"max_pattern_size": 3, "min_count": 3}},
    {"n": 3},
    {"n": 2},
]
PROCESSORS = {"logits_processors": [count_up]}


class Asked(NamedTuple):
    """A request, and the parameters that answer it; None: more than one set of them."""

    prompt: list[int]
    params: SamplingParams
    adapter: LoRARequest | None
    version: int | None


class Mix:
    """One random mix. Equal seeds give equal mixes."""

    def __init__(self, seed: int, folder: Path, tokenizer: Any) -> None:
        self.draw = draw = random.Random(seed)
        self.family = draw.choice(list(MODELS))
        overrides: dict[str, Any] = {"max_position_embeddings": 1024, **MODELS[self.family]}
        self.folder = write_tiny_native(folder / "model", self.family, **overrides)
        config = {**tiny_settings(self.family, **overrides), "dtype": "float32"}
        config["architectures"] = [FAMILIES[self.family]]
        self.versions = [dummy_model(model_config(config), seed=number) for number in (0, 1)]
        self.common: dict[str, Any] = {
            "tokenizer": tokenizer, "max_model_len": MAX_MODEL_LEN, "mamba_block_size": 32,
        }  # fmt: skip
        if self.family not in ("lfm2", *RECURRENT):
            del self.common["mamba_block_size"]
        self.adapters: list[LoRARequest | None] = [None]
        if self.family in TARGETS and draw.random() < 0.5:
            self._add_adapters()
        self.settings = self._settings(folder)
        self.prefixes = [self._tokens(draw.randrange(20, 120)) for _ in range(3)]

    def _add_adapters(self) -> None:
        self.common |= {"enable_lora": True, "max_lora_rank": 4}
        self.adapters += [self.adapter(number, number) for number in (1, 2, 3)]

    def adapter(self, number: int, seed: int) -> LoRARequest:
        """An adapter of this number, for a model that takes some; it replaces an older one."""
        folder = self.folder.parent / f"a{number} {seed}"
        write_adapter(folder, self.folder, TARGETS[self.family], seed=seed)
        return LoRARequest(f"a{number}", number, str(folder), load_inplace=number != seed)

    @property
    def is_here(self) -> bool:
        """Whether the core is in this process."""
        return "multiprocess" not in self.settings

    def _settings(self, folder: Path) -> dict[str, Any]:
        draw = self.draw
        found = {name: draw.choice(values) for name, values in SETTINGS.items()}
        found = {name: value for name, value in found.items() if value is not None}
        found |= draw.choice(LONGER)
        speculative = found.get("speculative_config", {})
        if speculative.get("method") == "draft_model":
            sizes = {"max_position_embeddings": 1024, "num_hidden_layers": 1}
            draft = write_tiny_native(folder / "draft", "llama", seed=3, **sizes)
            found["speculative_config"] = {**speculative, "model": str(draft)}
        if not found["enable_prefix_caching"]:
            found.pop("kv_offloading_size", None)
        if "enable_lora" in self.common:
            found["max_loras"] = draw.choice([1, 2])
        rows = found["max_num_seqs"] * (4 if "speculative_config" in found else 1)
        chunk = found["max_num_batched_tokens"]
        compilation: dict[str, Any] = {"decode_rows": [rows], "prefill_tokens": [chunk]}
        if draw.random() < 0.3:
            compilation["max_adjusted_seqs"] = 1
        return {**found, "enable_sleep_mode": True, "compilation_config": compilation}

    def _tokens(self, length: int) -> list[int]:
        """Some of few tokens, which repeat themselves."""
        most = self.draw.choice([8, VOCAB])
        return [self.draw.randrange(3, most) for _ in range(length)]

    def request(self, version: int) -> Asked:
        """Another request."""
        draw = self.draw
        prompt = self._tokens(draw.choice([1, 5, 17, 40]))
        if draw.random() < 0.6:
            prefix = draw.choice(self.prefixes)
            prompt = prefix[: draw.choice([16, 32, len(prefix)])] + prompt
        given: dict[str, Any] = {"max_tokens": draw.choice([1, 4, 12, 40]), **draw.choice(DRAWN)}
        for feature in draw.sample(FEATURES, draw.choice([0, 1, 2, 3])):
            given |= feature
        if draw.random() < 0.03 and self.is_here:
            given |= PROCESSORS
        if given["temperature"]:
            given["seed"] = draw.randrange(1000)
        else:
            given.pop("n", None)
        given["max_tokens"] = max(given["max_tokens"], given.get("min_tokens", 0))
        if "logprob_token_ids" in given:
            given.pop("logprobs", None)
        if "structured_outputs" in given:
            given["structured_outputs"] = StructuredOutputsParams(**given["structured_outputs"])
            given.pop("allowed_token_ids", None)
        return Asked(prompt, SamplingParams(**given), draw.choice(self.adapters), version)

    def engine(self) -> jengine.LLM:
        """The engine of this mix."""
        return tiny_engine(self.folder, **self.common, **self.settings)

    def plain(self) -> jengine.LLM:
        """The engine that answers plainly."""
        return tiny_engine(
            self.folder, **self.common, enable_prefix_caching=False, async_scheduling=False,
            max_num_seqs=4, compilation_config={"decode_rows": [4]},
        )  # fmt: skip
