"""Flags for argparse, made from the fields of a dataclass. No jax.

In: a parser and a text of help per field. Out: flags on it, whose values are typed and checked;
what was not given is absent from the namespace. Must not know commands.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields
from types import MappingProxyType
from typing import Any, get_args

from jengine.assembly.settings.dict_settings import COMPILATION_KEYS
from jengine.assembly.settings.flag_values import flag_settings
from jengine.assembly.settings.reasoning_settings import KEYS as REASONING_KEYS
from jengine.assembly.settings.structured_settings import KEYS as STRUCTURED_OUTPUTS_KEYS
from jengine.assembly.settings.values import field_types

# For a setting that is true or false the text is about changing its default.
ENGINE_HELP = {
    "runner": "what the model is for: generate, pooling, or auto (by its files)",
    "convert": "make a model that writes one that makes embeddings or classes: embed, classify",
    "task": argparse.SUPPRESS,
    "pooler_config": "JSON with the fields of PoolerConfig, or --pooler-config.KEY VALUE",
    "hf_overrides": "JSON: entries that replace those of config.json",
    "tokenizer": "folder or org/name of the tokenizer, if it is not the model's",
    "revision": "of a repository of the Hugging Face Hub: branch, tag or commit [main]",
    "tokenizer_revision": "that of the tokenizer [the model's]",
    "download_dir": "folder of the download cache [Hugging Face's own, see HF_HOME]",
    "hf_token": "token for gated and private repositories [HF_TOKEN, which ps does not show]",
    "ignore_patterns": "files of a repository that are left out, as patterns with *",
    "trust_remote_code": argparse.SUPPRESS,
    "chat_template": "file or text of a chat template, if it is not the tokenizer's",
    "dtype": "type of weights and cache: auto, float32, bfloat16, float16",
    "quantization": "round weights as they are loaded: int8, int4, fp8, int8_with_head, ...",
    "kv_cache_dtype": "what keys and values are stored as: auto (the model's dtype), int8, fp8",
    "tensor_parallel_size": "devices to split each layer over",
    "enable_expert_parallel": "give each of these devices some experts whole, not a part of each",
    "all2all_backend": "whether devices with whole experts exchange sums of all tokens "
    "(allgather_reducescatter) or send tokens to their experts (all_to_all)",
    "joint_replicas": "replicas run each step together, with experts spread over all their devices",
    "enable_eplb": "move experts between devices so that their loads are equal",
    "eplb_config": "JSON, or --eplb-config.KEY VALUE; keys: num_redundant_experts, window_size, "
    "step_interval, log_balancedness",
    "enable_return_routed_experts": "return the experts that each token picked",
    "decode_context_parallel_size": "devices of one KV head that divide the cached tokens of each "
    "request among them, instead of holding copies",
    "prefill_context_parallel_size": "groups of devices, each with all weights, that divide the "
    "tokens of each step among them",
    "pipeline_parallel_size": "stages of layers, each on separate devices",
    "data_parallel_size": "copies of the model, each on separate devices",
    "data_parallel_backend": "local: copies run in one process; process (serve): each in its own; "
    "ray: on the nodes of a Ray cluster",
    "data_parallel_options": "JSON, or --data-parallel-options.KEY VALUE; keys, for ray: address, "
    "cpus, gpus, environment, start, stop",
    "data_parallel_size_local": "copies of the model on this host; the others join from theirs",
    "data_parallel_start_rank": "with --headless: the number of this host's first copy",
    "data_parallel_address": "address of the host with the front, where copies on others join",
    "data_parallel_rpc_port": "port there",
    "nnodes": "nodes that the model is split over; node 0 has the API, the others --headless",
    "node_rank": "the number of this node",
    "master_addr": "address of node 0, where the others meet it",
    "master_port": "port there",
    "multihost": "JSON, or --multihost.KEY VALUE: how long nodes wait for one another; keys: "
    "address, meet, silence, stuck, compare_every",
    "executor": "what runs the steps: auto, local, multihost, ray, or package.module:Class",
    "executor_options": "JSON, or --executor-options.KEY VALUE; the executor knows the keys",
    "load_format": "where weights come from; auto: what the folder holds, dummy: at random, peer: "
    "from an engine that runs",
    "model_loader_extra_config": "JSON, or --model-loader-extra-config.KEY VALUE: weights that "
    "engines take from each other; keys: serve, peer, secret, readers, timeout_seconds",
    "model_impl": "generic: read an unknown architecture as its tensors show",
    "seed": "seed of sampling and of dummy weights",
    "max_model_len": "longest prompt and answer together, in tokens",
    "max_num_seqs": "most requests that run at once",
    "max_num_batched_tokens": "most tokens of one step",
    "block_size": "tokens of one cache block",
    "num_gpu_blocks_override": "blocks of each cache group, whatever memory there is",
    "gpu_memory_utilization": "share of the accelerator's memory to use",
    "kv_cache_memory_bytes": "bytes of the cache, for example 2G",
    "cpu_offload_gb": "GiB of weights of each accelerator that stay in the host's memory and are "
    "copied to it in every step",
    "enable_prefix_caching": "do not reuse the cache of prompts that begin alike",
    "kv_offloading_size": "GiB of the host's memory for cache blocks that leave the device",
    "kv_offloading_backend": "native: jengine's own",
    "kv_transfer_config": "JSON, or --kv-transfer-config.KEY VALUE: a connector that keeps cache "
    "blocks further away, by vLLM's keys",
    "kv_events_config": "JSON, or --kv-events-config.KEY VALUE: publish which blocks are cached, "
    "by vLLM's keys",
    "mamba_block_size": "recurrent layers: tokens between kept copies of their state",
    "mamba_cache_mode": "recurrent layers: keep copies of their state for prompts that begin "
    "alike, or none",
    "mamba_cache_dtype": "type of what convolutions keep of the last tokens",
    "mamba_ssm_cache_dtype": "type of other recurrent states",
    "enable_chunked_prefill": "run each prompt in one piece",
    "long_prefill_token_threshold": "prompts longer than this are run in pieces of this size",
    "scheduling_policy": "which request runs first: fcfs, priority, or package.module:Class",
    "overlap": "end a step before the next is prepared",
    "attention_backend": "the kernels; auto: Triton on NVIDIA GPUs, C++ on CPUs, else XLA",
    "disable_cascade_attn": "read blocks that several decodes begin with anew for each, on GPUs",
    "pack_weights": "auto: copy weights into the form that CPU kernels read fastest; false: do not",
    "num_scheduler_steps": "decode steps in one call of the device while no request waits",
    "speculative_config": "JSON with vLLM's keys, or --speculative-config.KEY VALUE: guess several "
    "tokens of a row for one step, with method ngram, suffix, draft_model, "
    "eagle, eagle3, medusa or mtp",
    "enable_sleep_mode": "let /sleep free the memory of weights and cache until /wake_up",
    "enable_lora": "answer requests with LoRA adapters, which are loaded while the engine runs",
    "max_loras": "LoRA adapters that a step may use at once",
    "max_lora_rank": "largest rank of a LoRA adapter",
    "max_cpu_loras": "LoRA adapters kept in memory; the least recently used is dropped first",
    "lora_dtype": "type of adapters' matrices: auto (the model's), float32, bfloat16, float16",
    "lora_target_modules": "modules that adapters may change, such as q_proj; all by default",
    "enforce_eager": "compile steps when they are first needed, not at the start",
    "strict": "make a compile after the start an error",
    "deterministic": "bitwise equal log-probabilities in any batch; slower where XLA multiplies",
    "compilation_config": "JSON, or --compilation-config.KEY VALUE; keys: "
    + ", ".join(COMPILATION_KEYS),
    "generation_config": "whether the model's generation_config.json sets sampling defaults",
    "structured_outputs_config": "JSON, or --structured-outputs-config.KEY VALUE; keys: "
    + ", ".join(STRUCTURED_OUTPUTS_KEYS),
    "reasoning_config": "JSON, or --reasoning-config.KEY VALUE: the marks by which a request's "
    "thinking_token_budget ends its reasoning; keys: " + ", ".join(REASONING_KEYS),
    "logits_processors": "JAX functions that change logits, or classes of processors that run on "
    "the host, each as package.module:name",
    "limit_mm_per_prompt": "most images of a prompt, for a model that takes some",
    "allowed_local_media_path": "folder whose files may be named by file: URLs of images",
    "allowed_media_domains": "hosts from which images may be loaded over http and https",
    "mm_processor_kwargs": "settings of the preprocessing of images",
    "mm_encoder_tp_mode": "whether devices share the weights of the vision tower, or its images",
    "max_logprobs": "most log-probabilities a request may ask for; -1: the vocabulary",
    "logprobs_mode": "what is returned as log-probabilities",
    "disable_log_stats": "log figures while running",
    "kv_cache_metrics": "measure how long blocks stay in the KV cache",
    "kv_cache_metrics_sample": "share of the blocks that are measured",
    "otlp_traces_endpoint": "URL of a collector for traces, such as http://host:4318/v1/traces",
    "flight_recorder": "folder for recordings of steps, which hold prompts and answers",
    "flight_recorder_steps": "steps that a recording holds at most",
    "show_progress": "show no progress bars",
}
# Fields that only make sense from Python.
NO_ENGINE_FLAG = (
    "model", "params", "mesh", "mesh_axes", "multiprocess", "skip_tokenizer_init",
    "enable_prompt_embeds", "override_generation_config", "profiler_config", "reasoning_parser",
    "data_parallel_secret",
)  # fmt: skip


def add_field_flags(
    group: argparse._ArgumentGroup,
    owner: type[Any],
    helps: Mapping[str, str],
    short: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Flags for some fields of a dataclass, by their type. What is not given stays absent."""
    types = field_types(owner)
    by_name = {field.name: field for field in fields(owner)}
    for name, text in helps.items():
        flags = ["--" + name.replace("_", "-"), *([short[name]] if name in short else [])]
        common = {"dest": name, "default": argparse.SUPPRESS, "help": text}
        if bool in (types[name], *get_args(types[name])):
            add_switch(group, flags, by_name[name].default is not False, common)
            continue
        if not text.endswith("]"):
            common["help"] = text + shown_default(by_name[name])
        group.add_argument(*flags, **common, **flag_settings(name, types[name]))


def add_switch(
    group: argparse._ArgumentGroup, flags: Sequence[str], usually_on: bool, common: dict[str, Any]
) -> None:
    """--flag and --no-flag; help shows the one that changes something."""
    flag, *others = flags
    other = flag.replace("--", "--no-", 1)
    shown, hidden = (other, flag) if usually_on else (flag, other)
    for spelling in (shown, hidden):
        action = "store_false" if spelling == other else "store_true"
        names = [spelling] if spelling == other else [spelling, *others]
        group.add_argument(*names, action=action, **common)
        common = {**common, "help": argparse.SUPPRESS}


def shown_default(field: Field[Any]) -> str:
    """' [default]' for help, where there is one to show."""
    if field.default in (None, MISSING, ()):
        return ""
    told = " ".join(field.default) if isinstance(field.default, tuple) else field.default
    return f" [{told}]"
