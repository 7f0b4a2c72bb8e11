"""vLLM's names for what has another name or place here, or is not built yet.

Scripts for vLLM import from its paths (`vllm.inputs`, `vllm.engine.arg_utils`, `vllm.lora.request`)
and call its methods. The tables below say where our own name is, or why there is none, so that the
change of an import is enough, or the error says what to do.

The paths are served by a finder at the end of `sys.meta_path`. It is asked for modules of jengine
only, and only where no such file exists: a room that is built later takes its path over by being
there. Files that re-export would have to import from low rooms to high ones (`engine.arg_utils` is
part of `assembly`), and entries in `sys.modules` would hide files that come later.
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
SERVER, ELASTIC = "the HTTP server", "elastic scaling"
AS_DICT = "settings are given as a dict, such as compilation_config={...}"
CONNECTORS = (
    "a connector of your own fulfils jengine.connectors.protocol; kv_transfer_config names it"
)
UPDATE = "use update_params(...), which takes a tree of arrays between two steps"

# Path of vLLM below jengine -> the public names of jengine that it holds, "ours as theirs" where
# vLLM has another one.
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
    "entrypoints": (),
    "entrypoints.llm": ("LLM",),
    "logits_process": ("RequestLogitsProcessor as LogitsProcessor",),
    "lora.request": ("LoRARequest",),
    "v1": (),
    "v1.engine": (),
    "v1.engine.async_llm": ("AsyncLLM",),
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
# In these tables a feature that is not built yet stands for itself; a sentence says what to do.
UNBUILT_PATHS = {
    "assets": MULTIMODAL,
    "distributed.kv_transfer": f"{CONNECTORS}.",
    "distributed.weight_transfer": f"{UPDATE}.",
    "engine.llm_engine": "use LLM with enqueue(...) and wait_for_completion(), or stream(...).",
    "entrypoints.chat_utils": "give messages to LLM.chat(...).",
    "entrypoints.openai": SERVER,
    "model_executor": "models are registered with jengine.register_model(...).",
    "multimodal": MULTIMODAL,
    "platforms": "jax.devices() says what there is.",
    "plugins": "models are registered with jengine.register_model(...).",
    "reasoning": "parsers of reasoning",
    "tokenizers": "use LLM.get_tokenizer(), a tokenizer of transformers.",
    "tool_parsers": "parsers of tool calls",
    "transformers_utils": "use transformers.",
    "usage": "nothing is reported to anyone.",
    "utils": "use Python's own modules, such as argparse.",
}
UNBUILT_NAMES = {
    "CompilationConfig": f"{AS_DICT}.",
    "GuidedDecodingParams": "use StructuredOutputsParams, which has the same fields.",
    "KVEventsConfig": f"{AS_DICT}.",
    "KVTransferConfig": f"{AS_DICT}.",
    "LLMEngine": "use LLM with enqueue(...) and wait_for_completion(), or stream(...).",
    "ModelRegistry": "use jengine.register_model(...).",
    "ProfilerConfig": f"{AS_DICT}.",
    "StructuredOutputsConfig": f"{AS_DICT}.",
    "VllmConfig": "use EngineArgs.",
    "initialize_ray_cluster": "use LLM(..., executor='ray').",
}
# Attributes of LLM and AsyncLLM.
UNBUILT_METHODS = {
    "add_request": "use generate(...).",
    "apply_model": "parameters are replaced with update_params(...), values inside the model are "
    "read and changed with LLM.generate(capture=..., intervene=...).",
    "check_admission": SERVER,
    "checkpoint_prepare": "checkpoints of the process",
    "checkpoint_restore": "checkpoints of the process",
    "compute_weight_checksums": "checksums of weights",
    "do_log_stats": "give disable_log_stats=False when the engine is made.",
    "finish_weight_update": f"{UPDATE}.",
    "get_external_elastic_ep_status": ELASTIC,
    "get_kv_event_sources": "kv_events_config says where events are published.",
    "get_num_queued_tokens": SERVER,
    "get_num_unfinished_requests": "stats() counts running and waiting requests.",
    "get_status": ELASTIC,
    "get_supported_tasks": "engine.model.pooling says how a model pools; None: it generates.",
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
    "should_keep_api_server_alive": SERVER,
    "shutdown_weight_transfer_engine": f"{UPDATE}.",
    "start_draft_weight_update": f"{UPDATE}.",
    "start_weight_update": f"{UPDATE}.",
    "tokenizer": "use get_tokenizer().",
    "update_weight_version": "weights_version counts the updates.",
    "update_weights": f"{UPDATE}.",
}


def explained(reason: str) -> str:
    """A feature that is missing, or what to use instead, as the end of a message."""
    return reason if reason.endswith(".") else f"needs {reason}, not built yet."


def missing_name(module: str, name: str) -> Exception:
    """The error for a name that a module of jengine does not have."""
    if name in UNBUILT_NAMES:
        return UnsupportedImport(f"{module}.{name}: {explained(UNBUILT_NAMES[name])}")
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def missing_attribute(owner: str, name: str) -> AttributeError:
    """The error for an attribute that LLM or AsyncLLM does not have."""
    if name in UNBUILT_METHODS:
        return UnsupportedAttribute(f"{owner}.{name}: {explained(UNBUILT_METHODS[name])}")
    return AttributeError(f"{owner!r} object has no attribute {name!r}")


class VllmPaths:
    """Finds the modules of PATHS, and says why those of UNBUILT_PATHS are not there."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of vLLM's that is no file of ours."""
        package, _, name = fullname.partition(".")
        if package != "jengine":
            return None
        if name in UNBUILT_PATHS:
            raise UnsupportedImport(f"{fullname}: {explained(UNBUILT_PATHS[name])}")
        if name not in PATHS:
            return None
        is_package = any(other.startswith(f"{name}.") for other in PATHS)
        return ModuleSpec(fullname, NamesOfJengine(PATHS[name]), is_package=is_package)


class NamesOfJengine(Loader):
    """Loads a module whose names are public names of jengine, each imported when it is used."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to the import system."""

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its names."""

        ours = {one.rpartition(" as ")[2]: one.partition(" as ")[0] for one in self.names}

        def get(name: str) -> Any:
            if name in ours:
                return getattr(importlib.import_module("jengine"), ours[name])
            raise missing_name(module.__name__, name)

        vars(module).update(__all__=list(ours), __getattr__=get)
