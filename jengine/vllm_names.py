"""vLLM's names and import paths that are elsewhere, or unsupported, in jengine.

Scripts for vLLM import from its paths (`vllm.inputs`, `vllm.engine.arg_utils`, `vllm.lora.request`)
and call its methods. The tables below give our name, or the reason why there is none, so that
replacing `vllm` in an import suffices, or the error says what to do.

The paths are served by a finder at the end of `sys.meta_path`, which is asked only for modules of
jengine without a file, so a file added later takes precedence. Re-exporting files would import from
low rooms to high ones (`engine.arg_utils` is part of `assembly`), and entries in `sys.modules`
would shadow later files.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from jengine.errors import UnsupportedAttribute, UnsupportedImport

MULTIMODAL = (
    "give images, videos and audio in a prompt's multi_modal_data, or as parts of chat messages."
)
KEPT_IMAGES = (
    "what is kept of images is named by their contents and by the weights, so it is never stale."
)
OF_SERVER = "jengine serve knows it without asking the engine."
ELASTIC = "POST /scale_elastic_ep of jengine serve changes the number of cores."
CONNECTORS = (
    "a connector of your own fulfils jengine.connectors.protocol; kv_transfer_config names it"
)
UPDATE = "use update_params(...), which takes a tree of arrays between two steps"

# vLLM module -> public names of jengine in it: "ours as theirs" if they differ, "module:name" for
# names that are not public.
PATHS: dict[str, tuple[str, ...]] = {
    "inputs": (
        "EmbedsPrompt",
        "ExplicitEncoderDecoderPrompt",
        "PromptType",
        "TextPrompt",
        "TokensPrompt",
    ),
    "engine.arg_utils": ("AsyncEngineArgs", "EngineArgs"),
    "engine.async_llm_engine": ("AsyncLLMEngine",),
    "engine.llm_engine": ("LLMEngine",),
    "entrypoints": (),
    "entrypoints.llm": ("LLM",),
    "logits_process": ("RequestLogitsProcessor as LogitsProcessor",),
    "logger": ("jengine.vllm_scripts:init_logger",),
    "lora.request": ("LoRARequest",),
    "distributed.parallel_state": ("jengine.vllm_scripts:cleanup_dist_env_and_memory",),
    "utils": (
        "jengine.cli.parser:FlexibleArgumentParser",
        "jengine.vllm_scripts:random_uuid",
    ),
    "utils.argparse_utils": ("jengine.cli.parser:FlexibleArgumentParser",),
    "v1": (),
    "v1.engine": (),
    "v1.engine.async_llm": ("AsyncLLM",),
    "v1.engine.llm_engine": ("LLMEngine",),
    "v1.metrics": (),
    "v1.metrics.reader": tuple(
        f"jengine.metrics.reader:{name}"
        for name in ("Counter", "Gauge", "Histogram", "Metric", "Vector")
    ),
    "v1.sample": (),
    "v1.sample.logits_processor": (
        "AdapterLogitsProcessor",
        "BatchUpdate",
        "LogitsProcessor",
        "MoveDirectionality",
    ),
    "v1.sample.logits_processor.builtin": ("process_dict_updates",),
    "v1.sample.logits_processor.interface": (
        "BatchUpdate",
        "LogitsProcessor",
        "MoveDirectionality",
    ),
    "version": ("__version__",),
}
# Packages of ours with the name of a vLLM package -> vLLM's names in it.
NAMES_IN_ROOMS: dict[str, tuple[str, ...]] = {
    "config": (
        "jengine.vllm_scripts:CompilationConfig",
        "jengine.vllm_scripts:KVEventsConfig",
        "jengine.vllm_scripts:KVTransferConfig",
        "jengine.vllm_scripts:ProfilerConfig",
        "jengine.vllm_scripts:StructuredOutputsConfig",
    ),
    "distributed": ("jengine.vllm_scripts:cleanup_dist_env_and_memory",),
}
# In these tables: the missing feature, or a sentence of advice.
UNBUILT_PATHS = {
    "assets": MULTIMODAL,
    "distributed.kv_transfer": f"{CONNECTORS}.",
    "distributed.weight_transfer": f"{UPDATE}.",
    "entrypoints.chat_utils": "give messages to LLM.chat(...).",
    "entrypoints.openai": "jengine serve MODEL starts the server.",
    "model_executor": "models are registered with jengine.register_model(...).",
    "multimodal": MULTIMODAL,
    "platforms": "jax.devices() says what there is.",
    "plugins": "models are registered with jengine.register_model(...).",
    "reasoning": "--reasoning-parser names one of jengine.text.reasoning_parsers.",
    "tokenizers": "use LLM.get_tokenizer(), a tokenizer of transformers.",
    "tool_parsers": "--tool-call-parser names one of jengine.text.tool_parsers.",
    "transformers_utils": "use transformers.",
    "usage": "nothing is reported to anyone.",
}
UNBUILT_NAMES = {
    "GuidedDecodingParams": "use StructuredOutputsParams, which has the same fields.",
    "ModelRegistry": "use jengine.register_model(...).",
    "VllmConfig": "use EngineArgs.",
    "initialize_ray_cluster": "use LLM(..., executor='ray').",
}
# Attributes of LLM and AsyncLLM.
UNBUILT_METHODS = {
    "add_request": "use generate(...).",
    "apply_model": "parameters are replaced with update_params(...), values inside the model are "
    "read and changed with LLM.generate(capture=..., intervene=...).",
    "check_admission": OF_SERVER,
    "checkpoint_prepare": "checkpoints of the process",
    "checkpoint_restore": "checkpoints of the process",
    "compute_weight_checksums": "checksums of weights",
    "do_log_stats": "give disable_log_stats=False when the engine is made.",
    "finish_weight_update": f"{UPDATE}.",
    "get_external_elastic_ep_status": ELASTIC,
    "get_kv_event_sources": "kv_events_config says where events are published.",
    "get_num_queued_tokens": "stats() counts running and waiting requests.",
    "get_num_unfinished_requests": "stats() counts running and waiting requests.",
    "get_status": ELASTIC,
    "get_supported_tasks": "use supported_tasks.",
    "get_weight_version": "use weights_version.",
    "handle_fault": "fault tolerance",
    "init_weight_transfer_engine": f"{UPDATE}.",
    "input_processor": "use engine.session.input_processor.",
    "llm_engine": "use engine.",
    "model_config": "use engine.model.",
    "notify_kv_transfer_request_rejected": "producers keep no blocks for single requests.",
    "reset_encoder_cache": KEPT_IMAGES,
    "reset_mm_cache": KEPT_IMAGES,
    "set_tokenizer": "give tokenizer=... when the engine is made.",
    "should_keep_api_server_alive": OF_SERVER,
    "shutdown_weight_transfer_engine": f"{UPDATE}.",
    "start_draft_weight_update": f"{UPDATE}.",
    "start_weight_update": f"{UPDATE}.",
    "tokenizer": "use get_tokenizer().",
    "update_weight_version": "weights_version counts the updates.",
    "update_weights": f"{UPDATE}.",
}


def explained(reason: str) -> str:
    """Complete an error message: a reason that ends with a period is advice, any other is a missing
    feature."""
    return reason if reason.endswith(".") else f"needs {reason}, not built yet."


def missing_name(module: str, name: str, *, is_package: bool = True) -> Exception:
    """The error for a name that a module of jengine does not have.

    For `hasattr` it must be an AttributeError. `from module import name` discards an
    AttributeError's message, hence an ImportError; but in a package, `from` then looks for a
    submodule, and VllmPaths raises the explanation.
    """
    if name not in UNBUILT_NAMES:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    kind = UnsupportedAttribute if is_package else UnsupportedImport
    return kind(f"{module}.{name}: {explained(UNBUILT_NAMES[name])}")


def name_in_room(module: str, name: str) -> Any:
    """Return vLLM's name in a package that jengine has too. Raises `missing_name`."""
    homes = dict(map(home_of, NAMES_IN_ROOMS[module.partition(".")[2]]))
    if name not in homes:
        raise missing_name(module, name)
    where, ours = homes[name]
    return getattr(importlib.import_module(where), ours)


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for an attribute that LLM or AsyncLLM does not have."""
    if name in UNBUILT_METHODS:
        return UnsupportedAttribute(f"{owner}.{name}: {explained(UNBUILT_METHODS[name])}")
    return AttributeError(f"{owner!r} object has no attribute {name!r}")


class VllmPaths:
    """Meta path finder of the modules in PATHS; raises explanations for those in UNBUILT_PATHS."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Spec of a module that vLLM has and jengine answers without a file; None for all
        others."""
        package, _, name = fullname.partition(".")
        if package != "jengine":
            return None
        why = UNBUILT_PATHS.get(name) or UNBUILT_NAMES.get(name.rpartition(".")[2])
        if why is not None:
            raise UnsupportedImport(f"{fullname}: {explained(why)}")
        if name not in PATHS:
            return None
        return ModuleSpec(fullname, NamesOfJengine(PATHS[name]), is_package=True)


class NamesOfJengine(Loader):
    """Loader of a module whose names are names of jengine, imported lazily."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def create_module(self, spec: ModuleSpec) -> None:
        """Use the default."""

    def exec_module(self, module: ModuleType) -> None:
        """Install the lazy names."""

        homes = dict(map(home_of, self.names))

        def get(name: str) -> Any:
            if name in homes:
                where, ours = homes[name]
                return getattr(importlib.import_module(where), ours)
            raise missing_name(module.__name__, name)

        vars(module).update(__all__=list(homes), __getattr__=get)


def home_of(entry: str) -> tuple[str, tuple[str, str]]:
    """Parse an entry of PATHS: vLLM's name, and the (module, name) it stands for."""
    ours, _, theirs = entry.partition(" as ")
    where, _, name = ours.rpartition(":")
    return theirs or name, (where or "jengine", name)
