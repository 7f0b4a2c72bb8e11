"""Joins a model's tokenizer and limits with the client of its core. No jax.

In: settings, model facts, a client. Out: an Engine, wherever its steps run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count as count_from
from pathlib import Path
from typing import Any

from jengine.assembly.engine import DeviceSide, Engine
from jengine.assembly.located import adapter_finder
from jengine.assembly.model_facts import ModelSource, image_settings, video_settings
from jengine.assembly.processors import RequestProcessors
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.settings.media_args import MediaSettings
from jengine.assembly.settings.reasoning_settings import reasoning_marks
from jengine.assembly.settings.structured_settings import structured_outputs_defaults
from jengine.config import CacheConfig, ScheduleConfig, VisionConfig
from jengine.engine.client import EngineClient
from jengine.engine.in_process import InProcessClient
from jengine.engine.input_processor import InputProcessor
from jengine.engine.limits import Limits
from jengine.engine.pooling_input import PoolingInput
from jengine.engine.session import Session
from jengine.engine.source_renderer import SourceRules
from jengine.errors import ConfigError, RequestError
from jengine.grammar.compiler import GrammarCompiler
from jengine.hub.names import shown_name
from jengine.media.options import checked_limits, checked_options
from jengine.media.pan_and_scan import AFTER_WHOLE, BETWEEN_CROPS
from jengine.media.processor import MediaProcessor, Room
from jengine.media.sources import MediaSources
from jengine.media.speech import SpeechProcessor
from jengine.metrics.stats_log import StatsLog
from jengine.metrics.tracing import Tracer
from jengine.sampling_params import SamplingParams
from jengine.text.tokenizer import Tokenizer
from jengine.weights.generation_config import FORCED

# Tokens around images by vision family, if config.json does not name them.
AROUND_IMAGES = {"internvl": ("<img>", "</img>")}
# A request with embeddings must fit in one message to a core in another process.
MOST_EMBEDS_BYTES = 32 * 2**20


def engine_of(
    args: EngineArgs,
    source: ModelSource,
    client: EngineClient,
    schedule: ScheduleConfig,
    cache: CacheConfig,
    platform: str,
    devices: DeviceSide | None = None,
) -> Engine:
    """Build the Engine: a session in front of the client."""
    limits = Limits(
        source.config.vocab_size,
        schedule.max_model_len,
        args.max_logprobs,
        source.eos_token_ids,
        source.stop_token_ids,
        source.config.hidden_size if args.enable_prompt_embeds else None,
        source.config.token_types,
        schedule.answer_room,
        source.config.pooling is not None and source.config.pooling.lower_case,
        None if isinstance(client, InProcessClient) else MOST_EMBEDS_BYTES,
    )
    log = None
    if not args.disable_log_stats:
        log = StatsLog(lambda: client.state().counts, platform)
    tracer = None
    if args.otlp_traces_endpoint is not None:
        tracer = Tracer.to(args.otlp_traces_endpoint, shown_name(args.model))
    grammars = devices.grammars if devices else GrammarCompiler()
    # Now, since the first grammar may come when outputs are being streamed.
    if devices is None and source.config.pooling is None:
        grammars.prepare()
    structured = structured_outputs_defaults(args.reasoning_parser, args.structured_outputs_config)
    inputs = InputProcessor(
        limits,
        source.tokenizer,
        args.seed or 0,
        grammars,
        structured,
        RequestProcessors(args.logits_processors, devices),
        media_processor(
            args.groups.media,
            source,
            Room(limits.max_model_len, limits.answer_room, limits.most_embeds_bytes),
        ),
        pooling_input(args.model, source),
        reasoning_marks(args.reasoning_parser, args.reasoning_config, source.tokenizer),
    )
    return Engine(
        session=Session(inputs, client, log, tracer, args.adapter_limits, adapter_finder(args.hub)),
        client=client,
        args=args,
        folder=source.folder,
        model=source.config,
        schedule=schedule,
        cache=cache,
        tokenizer=source.tokenizer,
        default_params=_default_params(source.generation),
        devices=devices,
        platform=platform,
    )


def media_processor(
    asked: MediaSettings, source: ModelSource, room: Room
) -> MediaProcessor | SpeechProcessor | SourceRules | None:
    """Media processor or text-encoder limits of the model; None if it takes only text."""
    given = {"mm_processor_kwargs": asked.mm_processor_kwargs,
             "mm_encoder_tp_mode": None if asked.mm_encoder_tp_mode == "weights" else "data",
             }  # fmt: skip
    vision, limits = source.config.vision, checked_limits(asked.limit_mm_per_prompt)
    if vision is None:
        for name in [name for name, value in given.items() if value]:
            raise ConfigError(
                f"{name}={given[name]!r}: {source.config.architecture} takes no images. Leave it "
                "out."
            )
        speech, encoder = source.config.speech, source.config.source_encoder
        if encoder is not None:
            return SourceRules(encoder.positions, encoder.start_token, forced_token(source))
        return None if speech is None else SpeechProcessor(speech, limits)
    try:
        options = checked_options(asked.mm_processor_kwargs, vision.family)
    except RequestError as error:
        raise ConfigError(str(error)) from None
    own = image_settings(source.folder)
    if vision.family in AROUND_IMAGES:  # transformers always cuts tiles, whatever this key says
        own.pop("crop_to_patches", None)
    settings = {**own, **options}
    tokenizer = source.tokenizer
    return MediaProcessor(
        wrapped(vision, source),
        settings,
        limits,
        media_sources(asked),
        of_videos={**video_settings(source.folder), **options},
        encode=None if tokenizer is None else lambda text: tokenizer.encode(text, False),
        join=None if tokenizer is None else partial(joined, tokenizer),
        room=room,
    )


def joined(tokenizer: Tokenizer, ids: list[int], text: str) -> list[int]:
    """Append a text to tokens, tokenizing it together with the text since the last added token."""
    first = len(ids)
    while first and ids[first - 1] not in tokenizer.added_tokens:
        first -= 1
    before = tokenizer.decode(ids[first:], skip_special_tokens=False)
    if tokenizer.encode(before, False) != ids[first:]:  # no text encodes to these tokens
        return ids + tokenizer.encode(text, False)
    return ids[:first] + tokenizer.encode(before + text, False)


def forced_token(source: ModelSource) -> int | None:
    """`forced_bos_token_id` of the generation config. Raises ConfigError outside the vocabulary."""
    forced, vocab = source.generation.get(FORCED), source.config.vocab_size
    if forced is None or forced < vocab:
        return forced
    raise ConfigError(
        f"generation_config.json: {FORCED} is {forced}; expected a token id from 0 to "
        f"{vocab - 1}. Correct it, or give generation_config='vllm'."
    )


def wrapped(vision: VisionConfig, source: ModelSource) -> VisionConfig:
    """The vision config with the tokens around images that its family needs, looked up in the
    tokenizer."""
    if source.tokenizer is None:
        return vision
    known = source.tokenizer.hf.get_vocab()
    if vision.family == "gemma3":
        longest = next(count for count in count_from(1) if "\n" * count not in known)
        texts = (source.tokenizer.encode(text, False) for text in (AFTER_WHOLE, BETWEEN_CROPS))
        breaks = tuple(known["\n" * n] for n in range(1, longest))
        return replace(vision, line_breaks=breaks, crop_texts=tuple(map(tuple, texts)))
    if vision.family not in AROUND_IMAGES:
        return vision
    start, end = (known.get(token) for token in AROUND_IMAGES[vision.family])
    return replace(vision, start_token=start, end_token=end, wraps=True)


def media_sources(asked: MediaSettings) -> MediaSources:
    """Allowed sources of media URLs."""
    domains, folder = asked.allowed_media_domains or (), asked.allowed_local_media_path
    return MediaSources(tuple(one.lower() for one in domains), Path(folder) if folder else None)


def pooling_input(model: Any, source: ModelSource) -> PoolingInput | None:
    """Validator of pooling requests; None for generative models."""
    config, pooling = source.config, source.config.pooling
    if pooling is None:
        return None
    width = pooling.head[-1].outputs if pooling.head else config.hidden_size
    return PoolingInput(pooling, width, config.vocab_size, Path(shown_name(model)).name)


def _default_params(generation: Mapping[str, Any]) -> dict[str, Any]:
    """SamplingParams fields that the model's generation_config.json sets."""
    names = {"max_new_tokens": "max_tokens"}
    fields = set(SamplingParams.__dataclass_fields__)
    named = {names.get(key, key): value for key, value in generation.items()}
    return {key: value for key, value in named.items() if key in fields}
