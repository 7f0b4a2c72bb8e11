"""Doctor: whether a model fits this machine, and with which settings. Reads headers, no weights.

In: a model folder and engine settings. Out: findings, and settings to add. Sizes come from the
functions that build the engine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from jengine.assembly.backend import start_backend
from jengine.assembly.model_facts import model_tokenizer
from jengine.assembly.model_source import stored_format
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.groups import Groups
from jengine.assembly.sizes.schedule_sizes import schedule_config
from jengine.assembly.sizes.step_sizes import runner_config
from jengine.capacity.device_memory import gigabytes, largest_step
from jengine.cli.checks.finding import Finding, Level
from jengine.config import ModelConfig, ScheduleConfig
from jengine.errors import JengineError
from jengine.hub.options import HubOptions
from jengine.hub.wanted import SETTINGS
from jengine.models.quantized import as_rounded, with_quantization
from jengine.runner.memory.cache_size import scratch_bytes
from jengine.runner.memory.memory_pool import available_bytes
from jengine.runner.step.group_arrays import block_bytes
from jengine.sampling.row_parameters import row_bytes
from jengine.weights.abstract import abstract_model, with_dtype
from jengine.weights.folder import open_checkpoint, read_model_config, register_imported
from jengine.weights.orbax_folder import find_checkpoint
from jengine.weights.resolve import in_hub, is_gguf, resolve_model


@dataclass(frozen=True)
class ModelReport:
    """Findings, and settings that make the model fit."""

    findings: list[Finding]
    settings: dict[str, int]
    can_chat: bool = True


@dataclass(frozen=True)
class MemorySizes:
    """Memory needed by a model, and left for its KV cache, in bytes."""

    asked: Groups
    model: ModelConfig
    parameters: int
    budget: int  # bytes for the KV cache

    @property
    def schedule(self) -> ScheduleConfig:
        return schedule_config(self.asked, self.model)

    def request_bytes(self, tokens: int) -> int:
        """KV cache bytes of one request of this length."""
        schedule = replace(self.asked.schedule, max_model_len=tokens)
        asked = replace(self.asked, schedule=schedule)
        wanted = runner_config(asked, self.model, schedule_config(asked, self.model))
        return sum(
            block_bytes(group, wanted.shapes.block_size, wanted.cache_dtype) * (blocks + 1)
            for group, (_, blocks) in zip(self.model.groups, wanted.demands, strict=True)
        )

    @property
    def bytes_per_token(self) -> int:
        """KV cache bytes per token within all sliding windows."""
        wanted = runner_config(self.asked, self.model, self.schedule)
        block_size = wanted.shapes.block_size
        groups = [one for one in self.model.groups if not one.spec.is_state]
        return sum(block_bytes(one, block_size, wanted.cache_dtype) for one in groups) // block_size

    @property
    def longest(self) -> int:
        """Longest request that fits in tokens; 1 if none does."""
        low, high = 1, self.schedule.max_model_len
        while low < high:
            middle = (low + high + 1) // 2
            if self.request_bytes(middle) <= self.budget:
                low = middle
            else:
                high = middle - 1
        return low


def check(name: str, settings: Mapping[str, Any]) -> ModelReport:
    """Check a model's configuration, weights, tokenizer and memory."""
    try:
        args = EngineArgs.checked("jengine", model=name, **settings)
        start_backend(args.gpu_memory_utilization)
        # Downloads no weights.
        folder = resolve_model(args.model, replace(args.hub, wanted=SETTINGS))
        if not is_gguf(folder):
            register_imported(folder, is_asked=args.model_impl == "generic")
        config = with_dtype(read_model_config(folder), args.dtype)
        config = with_quantization(config, args.quantization)
        sizes = measure(args.groups, config)
    except JengineError as error:
        return ModelReport([Finding("problem", "model", str(error))], {})
    weights = check_weights(args.load_format, folder)
    if weights.level == "problem" and in_hub(args.model):
        text = f"not downloaded yet, or not wholly: `jengine pull {args.model}` does it"
        weights = Finding("note", "weights", text)
    at = replace(args.hub, revision=args.tokenizer_revision, wanted=SETTINGS)
    tokenizer, can_chat = check_tokenizer(tokenizer_at(args.tokenizer or folder, at))
    fits, flags = check_fit(sizes)
    return ModelReport([describe(sizes), weights, tokenizer, *fits], flags, can_chat)


def tokenizer_at(tokenizer: Any, options: HubOptions) -> Any:
    """Download a tokenizer of the Hub; return a folder or tokenizer object unchanged."""
    return resolve_model(tokenizer, options) if in_hub(tokenizer) else tokenizer


def measure(asked: Groups, config: ModelConfig) -> MemorySizes:
    """Compute sizes without reading or allocating weights."""
    model = abstract_model(config)
    as_rounded(model)
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    parameters = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)
    free = available_bytes(jax.local_devices()[0], asked.cache.gpu_memory_utilization)
    schedule = schedule_config(asked, config)
    pool = schedule.sampler_rows * row_bytes(
        config.vocab_size, schedule.max_model_len, schedule.most_drafts
    )
    room = free - parameters - pool - scratch_bytes(config, *largest_step(schedule))
    wanted = asked.cache.kv_cache_memory_bytes
    budget = room if wanted is None else min(int(wanted), room)
    return MemorySizes(asked, config, parameters, budget)


def describe(sizes: MemorySizes) -> Finding:
    """Finding with the model's sizes."""
    config = sizes.model
    figures = {
        "parameter_bytes": sizes.parameters,
        "cache_bytes_per_token": sizes.bytes_per_token,
        "max_position": config.max_position,
        "cache_budget_bytes": max(sizes.budget, 0),
    }
    text = (
        f"{config.architecture}, {len(config.layers)} layers, {config.dtype}: parameters "
        f"{gigabytes(sizes.parameters)}, cache {gigabytes(sizes.bytes_per_token)} per token, "
        f"context {config.longest_context:,} tokens"
    )
    return Finding("OK", "model", text, figures)


def check_weights(load_format: str, folder: Any) -> Finding:
    """Check that weight files are present, complete and readable."""
    if load_format == "dummy":
        return Finding("OK", "weights", "drawn at random (load_format=dummy)")
    if load_format == "peer":
        return Finding("OK", "weights", "taken from an engine that runs (load_format=peer)")
    try:
        if stored_format(load_format, folder) == "orbax":
            return Finding("OK", "weights", f"an Orbax checkpoint in {find_checkpoint(folder)}")
        tensors = open_checkpoint(folder)
    except JengineError as error:
        return Finding("problem", "weights", str(error))
    stored = sum(tensor.size for tensor in tensors.values())
    return Finding("OK", "weights", f"{len(tensors)} tensors, {gigabytes(stored)} in {folder}")


def check_tokenizer(folder: Any) -> tuple[Finding, bool]:
    """Load the tokenizer. Returns the finding, and whether it has a chat template."""
    try:
        tokenizer = model_tokenizer(Path(folder))
    except JengineError as error:
        return Finding("problem", "tokenizer", str(error)), False
    if not tokenizer.hf.chat_template:
        text = f"{tokenizer.vocab_size:,} tokens, no chat template: generate works, chat needs one"
        return Finding("note", "tokenizer", text), False
    text = f"{tokenizer.vocab_size:,} tokens, with a chat template"
    return Finding("OK", "tokenizer", text), True


def check_fit(sizes: MemorySizes) -> tuple[list[Finding], dict[str, int]]:
    """Longest context and concurrency that fit, with the settings for them."""
    schedule, longest = sizes.schedule, sizes.longest
    if longest < 2:
        short = sizes.request_bytes(2) - sizes.budget
        text = (
            f"parameters ({gigabytes(sizes.parameters)}) and the smallest cache need about "
            f"{gigabytes(short)} more memory than there is. Use a smaller model or "
            "--dtype bfloat16"
        )
        return [Finding("problem", "fit", text, {"bytes_missing": short})], {}
    if longest < schedule.max_model_len:
        # Rounded down: easier to read, and the sizes are estimates.
        longest = longest // 256 * 256 or longest
    rows = sizes.budget // sizes.request_bytes(longest)
    settings = {
        name: value
        for name, value, usual in (
            ("max_model_len", longest, schedule.max_model_len),
            ("max_num_seqs", rows, schedule.max_num_seqs),
        )
        if value < usual
    }
    text = (
        f"about {gigabytes(sizes.budget)} are left for the cache: room for {rows:,} x "
        f"{longest:,} tokens at once, {gigabytes(sizes.request_bytes(longest))} each"
    )
    level: Level = "note" if settings else "OK"
    figures = {"max_model_len": longest, "max_num_seqs": rows}
    return [Finding(level, "fit", text, figures)], settings
