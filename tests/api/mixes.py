"""Random mixes: an engine of random settings, requests of random features, and random events.

`mixed` runs one by its seed and compares each answer with that of a plain engine, which answers the
same requests one by one, without overlap, drafts, cached prefixes or preemption.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import jengine
from jengine import LoRARequest, RequestOutput, SamplingParams, StructuredOutputsParams
from jengine.api.stats import EngineStats
from jengine.engine.core import EngineCore
from jengine.logprobs import StepLogprobs
from jengine.models.registry import model_config
from jengine.weights.dummy import dummy_model
from tests.api.engines import VOCAB, WINDOW, is_idle, tiny_engine
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
}
LONGER: list[dict[str, Any]] = [
    {},
    {"speculative_config": NGRAM},
    {"speculative_config": {**NGRAM, "adaptive": False}},
    {"speculative_config": {"method": "suffix", "num_speculative_tokens": 3}},
    {"num_scheduler_steps": 4},
]
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
            self._add_adapters(folder)
        self.settings = self._settings()
        self.prefixes = [self._tokens(draw.randrange(20, 120)) for _ in range(3)]
        self.asked: list[Asked] = []

    def _add_adapters(self, folder: Path) -> None:
        self.common |= {"enable_lora": True, "max_lora_rank": 4}
        for number in (1, 2, 3):
            name = f"a{number}"
            write_adapter(folder / name, self.folder, TARGETS[self.family], seed=number)
            self.adapters.append(LoRARequest(name, number, str(folder / name)))

    def _settings(self) -> dict[str, Any]:
        draw = self.draw
        found = {name: draw.choice(values) for name, values in SETTINGS.items()}
        found = {name: value for name, value in found.items() if value is not None}
        found |= draw.choice(LONGER)
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
        if draw.random() < 0.03:
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
        asked = Asked(prompt, SamplingParams(**given), draw.choice(self.adapters), version)
        self.asked.append(asked)
        return asked

    def engine(self) -> jengine.LLM:
        """The engine of this mix."""
        return tiny_engine(self.folder, **self.common, **self.settings)

    def plain(self) -> jengine.LLM:
        """The engine that answers plainly."""
        return tiny_engine(
            self.folder, **self.common, enable_prefix_caching=False, async_scheduling=False,
            max_num_seqs=4, compilation_config={"decode_rows": [4]},
        )  # fmt: skip


class Course:
    """What happens to an engine: its random moves."""

    def __init__(self, mix: Mix, llm: jengine.LLM) -> None:
        self.mix, self.llm, self.draw = mix, llm, mix.draw
        self.ids: list[str] = []
        self.ended: set[int] = set()  # the numbers of those that were aborted
        self.version = 0
        llm.update_params(mix.versions[0])

    @property
    def open(self) -> list[int]:
        """The numbers of requests that have not ended."""
        ids = {answer.request_id for answer in self.llm.engine.session.open_answers}
        return [number for number, one in enumerate(self.ids) if one in ids]

    def run(self, moves: int) -> list[RequestOutput]:
        """Random moves, and the answers to all that was asked."""
        choices: list[tuple[Callable[[], None], int]] = [
            (self.add, 6), (self.step, 8), (self.abort, 3), (self.update, 1), (self.sleep, 1),
            (self.forget, 1),
        ]  # fmt: skip
        functions, weights = zip(*choices, strict=True)
        for _ in range(moves):
            self.draw.choices(functions, weights)[0]()
        return self.llm.wait_for_completion(use_tqdm=False)

    def add(self) -> None:
        """Some requests come."""
        for _ in range(self.draw.choice([1, 2, 6])):
            asked = self.mix.request(self.version)
            self.ids += self.llm.enqueue(
                [asked.prompt], asked.params, asked.adapter, self.draw.randrange(3), use_tqdm=False
            )

    def step(self) -> None:
        """Some steps run."""
        for _ in range(self.draw.choice([1, 3, 12])):
            if self.llm.engine.session.has_work:
                self.llm._answering.batches._try_step(lambda: False)

    def abort(self) -> None:
        """Some requests end."""
        for number in self.draw.sample(self.open, min(len(self.open), self.draw.choice([1, 3]))):
            self._abort(number)

    def _abort(self, number: int) -> None:
        self.ended.add(number)
        self.llm.engine.session.abort(self.ids[number])

    def update(self) -> None:
        """Other parameters."""
        how: Any = self.draw.choice(["finish", "abort", "continue"])
        if how == "abort":
            self.ended.update(self.open)
        self._replace(how)

    def _replace(self, how: Any) -> None:
        if how == "continue":
            for number in self.open:
                self.mix.asked[number] = self.mix.asked[number]._replace(version=None)
        self.version = 1 - self.version
        self.llm.update_params(self.mix.versions[self.version], on_inflight=how)

    def sleep(self) -> None:
        """Sleep, requests that come meanwhile, and waking."""
        mode: Any = self.draw.choice(["abort", "wait", "keep"])
        level = self.draw.choice([0, 1, 1, 2])
        if mode == "abort":
            self.ended.update(self.open)
        self.llm.sleep(level, mode)
        if self.draw.random() < 0.5:
            self.add()
        if self.draw.random() < 0.3:
            self.abort()
        if level == 2:
            self._replace("continue")
        assert self.llm.wake_up()

    def forget(self) -> None:
        """Cached prefixes are forgotten, if nothing uses them."""
        self.llm.reset_prefix_cache()


def mixed(seed: int, folder: Path, tokenizer: Any, moves: int = 40) -> EngineStats:
    """Run the mix of this seed and check its answers, and that it leaves nothing. Returns what the
    engine counted."""
    mix = Mix(seed, folder, tokenizer)
    with mix.engine() as llm:
        course = Course(mix, llm)
        outputs = course.run(moves)
        stats = llm.stats()
        assert_nothing_is_left(llm)
    with mix.plain() as plain:
        for version in (0, 1):
            plain.update_params(mix.versions[version])
            for number, (asked, output) in enumerate(zip(mix.asked, outputs, strict=True)):
                if asked.version == version:
                    (expected,) = plain.generate(
                        [asked.prompt], asked.params, lora_request=asked.adapter, use_tqdm=False
                    )
                    compare(output, expected, number in course.ended, number, asked)
    return stats


def assert_nothing_is_left(llm: jengine.LLM) -> None:
    """No request, block, row or slot is in use."""
    assert is_idle(llm)
    core = llm.engine.in_process.core
    assert isinstance(core, EngineCore)
    core.drain()
    scheduler = core.scheduler
    requests = scheduler._requests
    assert len(requests.free_rows) == scheduler.config.max_num_seqs
    assert not requests.waiting._lanes and not requests.waiting.num_parked
    assert scheduler.cache.usage == 0
    assert llm.reset_prefix_cache()


def compare(
    found: RequestOutput, expected: RequestOutput, may_be_cut: bool, number: int, asked: Asked
) -> None:
    """An answer against the plain one, of which one that was aborted is the beginning."""
    where = f"request {number}: {asked}"
    for ours, theirs in zip(found.outputs, expected.outputs, strict=True):
        count = len(ours.token_ids)
        cut = may_be_cut and ours.finish_reason == "abort"
        assert ours.token_ids == theirs.token_ids[: count if cut else None], where
        if not cut:
            assert (ours.finish_reason, ours.stop_reason) == (
                theirs.finish_reason,
                theirs.stop_reason,
            ), where
            assert ours.text == theirs.text, where
        close(read(ours.logprobs), read(theirs.logprobs)[:count], where)
    if found.prompt_logprobs is not None:
        close(read(found.prompt_logprobs), read(expected.prompt_logprobs), where)


def read(tables: Any) -> list[dict[int, float]]:
    """Log-probabilities by token, position by position; none for the first token of a prompt."""
    if isinstance(tables, StepLogprobs):
        rows = zip(tables.ids.tolist(), tables.values.tolist(), strict=True)
        return [dict(zip(ids, values, strict=True)) for ids, values in rows]
    return [{key: one.logprob for key, one in table.items()} for table in tables or [] if table]


def close(found: list[dict[int, float]], expected: list[dict[int, float]], where: str) -> None:
    """The same positions, and near values for the tokens that both have."""
    assert len(found) == len(expected), where
    for ours, theirs in zip(found, expected, strict=True):
        both = sorted(ours.keys() & theirs.keys())
        assert both, where
        np.testing.assert_allclose(
            [ours[key] for key in both], [theirs[key] for key in both], atol=2e-3, err_msg=where
        )
