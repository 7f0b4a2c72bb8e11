"""vLLM's engine settings without a field in EngineArgs: the feature of each, and its default.

vLLM's default, or None, is accepted; any other value is refused with what to use instead, unless it
does not affect outputs (`vllm_tuning`). When a feature is built, its settings become fields of
EngineArgs and leave this table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from jengine.assembly.settings.vllm_tuning import WITHOUT_EFFECT, nearest, note_idle
from jengine.errors import ConfigError, UnsupportedFeature


class DictKey(NamedTuple):
    """A key of a dict setting."""

    setting: str
    key: str
    parse: Callable[[str], Any]  # from a command line


# vLLM's name -> the key that it sets.
PARTS = {
    "spec_method": DictKey("speculative_config", "method", str),
    "spec_model": DictKey("speculative_config", "model", str),
    "spec_tokens": DictKey("speculative_config", "num_speculative_tokens", int),
    "rope_scaling": DictKey("hf_overrides", "rope_scaling", json.loads),
    "rope_theta": DictKey("hf_overrides", "rope_theta", float),
}

# feature -> its settings with vLLM's defaults; a list holds several accepted values.
FEATURES: dict[str, dict[str, Any]] = {
    "quantization": {"quantization_config": None, "kv_cache_dtype_skip_layers": None},
    "LoRA adapters": {
        "default_mm_loras": None, "enable_tower_connector_lora": False,
        "enable_mixed_moe_lora_format": False, "enable_moe_shared_loras": False,
        "max_lora_cls_labels": None,
    },
    "speculative decoding": {"per_request_spec_decode_metrics": "none"},
    "multimodal input": {
        "enable_mm_embeds": False, "interleave_mm_strings": False, "media_io_kwargs": None,
        "mm_encoder_only": False, "video_pruning_rate": [None, 0],
        "ec_manager_config": None, "ec_transfer_config": None,
    },
    "the HTTP server": {"tokens_only": False, "io_processor_plugin": None},
    "sleep mode": {"sleep_preserve_parameter_names": None},
    "expert parallelism": {"enable_elastic_ep": False, "elastic_ep_max_dp_size": None},
    "returning sampling masks": {"return_sampling_mask": False, "aux_output_config": None},
    "forced decoding": {"enable_trace_replay": False},
    "watermarks": {"watermark_config": None},
    "diffusion models": {"diffusion_config": None},
    "engram memories": {"engram_config": None},
    "fault tolerance": {
        "fault_tolerance_config": None, "enable_fault_tolerance": False, "watchdog_config": None,
    },
}  # fmt: skip

# what to use instead -> vLLM's settings that will not be built, with accepted values.
INSTEAD: dict[str, dict[str, Any]] = {
    "weights are read from safetensors or Orbax folders (load_format)": {"model_weights": ""},
    "a GGUF file tells its own config; for a folder give the entries that differ as hf_overrides": {
        "hf_config_path": None,
    },
    "register a class of your own with jengine.register_model": {"model_class_overrides": None},
    "JAX chooses the devices: set CUDA_VISIBLE_DEVICES, or give mesh=": {"device_ids": None},
    "one process drives all its devices, nnodes and node_rank describe several, and executor says "
    "who runs the steps": {"distributed_executor_backend": ["uni", "mp"]},
    "one front routes to all ranks": {
        "data_parallel_rank": None, "data_parallel_hybrid_lb": False,
        "data_parallel_external_lb": False, "data_parallel_multi_port_external_lb": False,
    },
    "give a class of your own as executor='package.module:Class'": {
        "worker_cls": ["auto", "", "vllm.v1.worker.gpu_worker.Worker",
                       "vllm.v1.worker.cpu_worker.CPUWorker"],
        "worker_extension_cls": "",
    },
    "give an order of requests as scheduling_policy='package.module:Class', a class derived from "
    "jengine.scheduler.orders.Order": {
        "scheduler_cls": [None, "vllm.v1.core.sched.scheduler.Scheduler",
                          "vllm.v1.core.sched.async_scheduler.AsyncScheduler"],
    },
    "parsers of reasoning are built in; give the name of one as reasoning_parser": {
        "reasoning_parser_plugin": ["", None],
    },
    "use llm.update_params(...)": {"weight_transfer_config": None},
}  # fmt: skip


class VllmSetting(NamedTuple):
    """A setting of vLLM that EngineArgs has no field for."""

    feature: str | None  # that it belongs to; not built yet
    instead: str | None  # what to use
    idle: str | None  # why it has no effect
    unused: tuple[Any, ...]  # accepted values

    def asks_for_nothing(self, value: Any) -> bool:
        """Whether the value is vLLM's default or empty, so that it can be ignored."""
        empty = isinstance(value, (dict, list, tuple, set)) and not value
        return value is None or empty or value in self.unused


def _settings() -> dict[str, VllmSetting]:
    found = {}
    for kind, table in (("feature", FEATURES), ("instead", INSTEAD), ("idle", WITHOUT_EFFECT)):
        for words, names in table.items():
            reasons = {"feature": None, "instead": None, "idle": None, kind: words}
            for name, unused in names.items():
                values = tuple(unused) if isinstance(unused, list) else (unused,)
                found[name] = VllmSetting(**reasons, unused=values)
    return found


VLLM_SETTINGS = _settings()


def own_settings(
    owner: str, given: Mapping[str, Any], renamed: Mapping[str, str]
) -> dict[str, Any]:
    """Translate vLLM's settings to EngineArgs' names. Raises for unsupported features. `renamed`:
    vLLM's name -> ours."""
    result: dict[str, Any] = {}
    for name, value in with_parts(owner, given).items():
        executor = named_executor(name, value)
        value = nearest(owner, name, value)
        if executor is None and name in VLLM_SETTINGS:
            check_use(owner, name, value)
            continue
        new = renamed.get(name, name)
        if value is None and new != name:
            continue  # unset, beside our name
        if executor is not None:
            new, value = "executor", executor
        if new in result or (new != name and new in given):
            raise ConfigError(f"{owner}: {name} and {new} mean the same; give one of them.")
        result[new] = value
    return result


def with_parts(owner: str, given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Move single keys (`PARTS`) into the dict settings that they belong to."""
    found = {name: value for name, value in given.items() if name not in PARTS}
    for name, (setting, key, _) in PARTS.items():
        value, whole = given.get(name), found.get(setting) or {}
        if value is None or not isinstance(whole, Mapping):
            continue
        if whole.get(key, value) != value:
            raise ConfigError(
                f"{owner}: {setting}[{key!r}] is {whole[key]!r}, and {name} says {value!r}; give "
                "one of them."
            )
        found[setting] = {**whole, key: value}
    return found


def named_executor(name: str, value: Any) -> str | None:
    """The executor implied by one of vLLM's settings, or None.

    A worker class names an executor class here, which starts its workers itself.
    """
    if (name, value) == ("distributed_executor_backend", "ray"):
        return value
    if name != "worker_cls" or not isinstance(value, str) or value.startswith("vllm."):
        return None
    if ":" in value:
        return value
    module, _, attribute = value.rpartition(".")
    return f"{module}:{attribute}" if module else None


def check_use(owner: str, name: str, value: Any) -> None:
    """Raise unless the value can be ignored without affecting outputs."""
    setting = VLLM_SETTINGS[name]
    if setting.asks_for_nothing(value):
        return
    if setting.idle is not None:
        note_idle(owner, name, value, setting.idle)
        return
    if setting.feature is not None:
        raise UnsupportedFeature(
            f"{owner}({name}={value!r}): a setting of {setting.feature} that is not built yet; "
            f"leave {name} out."
        )
    raise UnsupportedFeature(f"{owner}({name}={value!r}): {setting.instead}; leave {name} out.")
