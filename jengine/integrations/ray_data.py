"""Batch inference with Ray Data: a processor in the form of `ray.data.llm`, over jengine's engine.

In: `JengineProcessorConfig`, with the fields of `vLLMEngineProcessorConfig`. Out: by
`build_processor`, a function from a dataset to a dataset. Chat template, tokenizer, engine and
detokenizer are actor pools of their own. Needs `jengine[ray]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ray
from ray.data import ActorPoolStrategy
from ray.data.llm import build_processor, vLLMEngineProcessorConfig
from ray.llm._internal.batch.processor.base import Processor, ProcessorBuilder
from ray.llm._internal.batch.processor.utils import build_cpu_stage_map_kwargs
from ray.llm._internal.batch.stages.configs import (
    ChatTemplateStageConfig,
    DetokenizeStageConfig,
    TokenizerStageConfig,
    resolve_stage_config,
)

from jengine.errors import UnsupportedFeature
from jengine.integrations.ray_actor import resources
from jengine.integrations.ray_data_engine import EngineStage
from jengine.integrations.ray_data_text import ChatTemplateStage, DetokenizeStage, TokenizeStage

__all__ = ["JengineProcessorConfig", "build_processor"]


class JengineProcessorConfig(vLLMEngineProcessorConfig):
    """`vLLMEngineProcessorConfig` for jengine: `model_source` is a folder, org/name or demo, and
    `engine_kwargs` are jengine's settings."""


def built(
    config: JengineProcessorConfig,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    preprocess: Callable[..., Any] | None = None,
    postprocess: Callable[..., Any] | None = None,
    preprocess_map_kwargs: dict[str, Any] | None = None,
    postprocess_map_kwargs: dict[str, Any] | None = None,
) -> Processor:
    """The processor of a config; `build_processor` calls it."""
    if resolved(config, config.prepare_multimodal_stage, ChatTemplateStageConfig).enabled:
        raise UnsupportedFeature(
            "prepare_multimodal_stage is not built: give multi_modal_data in a row's "
            "multimodal_data, as for LLM.generate."
        )
    ray.init(runtime_env=config.runtime_env, ignore_reinit_error=True)
    chat = resolved(config, config.chat_template_stage, ChatTemplateStageConfig)
    own = {
        "chat_template": chat.chat_template,
        "chat_template_kwargs": chat.chat_template_kwargs or chat_template_kwargs,
    }
    tokenize = resolved(config, config.tokenize_stage, TokenizerStageConfig)
    detokenize = resolved(config, config.detokenize_stage, DetokenizeStageConfig)
    detokenizes = detokenize.enabled and config.task_type == "generate"
    stages = [
        *([text_stage(ChatTemplateStage, chat, **own)] if chat.enabled else []),
        *([text_stage(TokenizeStage, tokenize)] if tokenize.enabled else []),
        engine_stage(config, detokenizes_later=detokenizes),
        *([text_stage(DetokenizeStage, detokenize)] if detokenizes else []),
    ]
    return Processor(
        config, stages, preprocess, postprocess, preprocess_map_kwargs, postprocess_map_kwargs
    )


def resolved(config: JengineProcessorConfig, given: Any, kind: type[Any]) -> Any:
    """Return a stage's settings, with the processor's where it has none of its own."""
    usual = {
        name: getattr(config, name)
        for name in ("batch_size", "concurrency", "runtime_env", "model_source")
    }
    if isinstance(given, dict) or given is True or given is False or isinstance(given, kind):
        return resolve_stage_config(given, kind, usual)
    raise TypeError(f"{given!r}: expected True, False, a dict or {kind.__name__}.")


def text_stage(kind: type[Any], stage: Any, **more: Any) -> Any:
    """A stage without a device."""
    return kind(
        fn_constructor_kwargs={"model": stage.model_source, **more},
        map_batches_kwargs=build_cpu_stage_map_kwargs(stage),
    )


def engine_stage(config: JengineProcessorConfig, *, detokenizes_later: bool) -> EngineStage:
    """The stage whose actors have an engine each. `detokenizes_later`: whether another stage makes
    text of the tokens."""
    pool = ActorPoolStrategy(
        **config.get_concurrency(autoscaling_enabled=not isinstance(config.concurrency, int)),
        max_tasks_in_flight_per_actor=config.max_tasks_in_flight_per_actor,
    )
    return EngineStage(
        fn_constructor_kwargs={
            "model": config.model_source,
            "engine_kwargs": {k: v for k, v in config.engine_kwargs.items() if k != "task_type"},
            "task_type": config.task_type,
            "max_pending_requests": config.max_pending_requests,
            "lora_folder": config.dynamic_lora_loading_path,
            "should_continue_on_error": config.should_continue_on_error,
            "log_engine_metrics": config.log_engine_metrics,
            "detokenizes_later": detokenizes_later,
        },
        map_batches_kwargs={
            "zero_copy_batch": True,
            "compute": pool,
            "max_concurrency": config.max_concurrent_batches,
            "runtime_env": config.runtime_env,
            **resources(config),
        },
    )


ProcessorBuilder.register(JengineProcessorConfig, built)
