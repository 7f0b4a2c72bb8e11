"""Traces tiny models: over whole sequences, in steps through the paged cache, and their towers.

In: configs, buckets and features. Out: nothing but the calls while models are traced: parameters,
caches and inputs are shapes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jengine.config import (
    CacheConfig,
    CacheGroup,
    ExpertsConfig,
    ModelConfig,
    cache_groups,
)
from jengine.lora.weights import adapted_weights
from jengine.models import registry
from jengine.models.decoder import Decoder
from jengine.models.draft_heads.eagle import Eagle
from jengine.models.draft_heads.eagle3 import Eagle3, Eagle3Form
from jengine.models.draft_heads.medusa import Medusa
from jengine.models.draft_heads.mtp import Mtp
from jengine.models.reading.pooling import PoolingFacts, read_pooling
from jengine.models.vision_language import Pictures
from jengine.runner.build import cross_packer
from jengine.runner.programs.encoders import encoding
from jengine.runner.step.attention_backend import cache_dtype
from jengine.runner.step.beside import ImagesInput, StepGiven
from jengine.runner.step.cross_attention import CrossInput
from jengine.runner.step.draft_stage import DraftStageInput
from jengine.runner.step.drafters import METHODS, ParallelDraftModel
from jengine.runner.step.heads import ChosenInput
from jengine.runner.step.part_functions import BODIES, body_of
from jengine.runner.step.patches import PatchPacker
from jengine.runner.step.program import AdapterProgram, DrafterProgram, Program
from jengine.runner.step.prompt_chunk import PromptChunk
from jengine.runner.step.state import StepState, empty_state
from jengine.runner.step.step_input import packed_size
from jengine.runner.variants.buckets import NO_TOKENS, Bucket, ChosenExperts, StepShapes
from jengine.runner.variants.features import Features
from jengine.runner.variants.parts import Part
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.media.tiny_bart import CONFIG as BART
from tests.media.tiny_t5 import CONFIG as T5
from tests.media.tiny_vision import CONFIGS
from tests.media.tiny_whisper import CONFIG as WHISPER
from tests.models.split import split_model
from tests.models.tiny_models import FAMILIES, tiny_settings

DRAFTERS = {**METHODS, "parallel": partial(ParallelDraftModel, mask=5)}
# Sizes that no other test has, so that functions jitted by themselves are traced again here.
SIZES = {"vocab_size": 89, "hidden_size": 40, "intermediate_size": 52}
DRAFTS, MAX_ROWS, MAX_LENGTH, BLOCK = 2, 4, 128, 8
KEPT_EMBEDDINGS = 11


def tiny(family: str, **own: Any) -> ModelConfig:
    """A decoder."""
    # A share of heads of 10 dimensions that is even.
    settings = {"architectures": [FAMILIES[family]], "dtype": "bfloat16"} | (
        {"partial_rotary_factor": 0.4} if family == "bamba" else {}
    )
    return registry.model_config({**tiny_settings(family, **SIZES), **settings, **own})


def tiny_pooling(architecture: str, **settings: Any) -> ModelConfig:
    """A model that makes vectors of prompts."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 512}
    hf = {"architectures": [architecture], **sizes, **SIZES, **settings}
    config = registry.model_config(hf)
    pooling = read_pooling(hf, config, PoolingFacts(), registry.own_pooling(config, hf))
    return replace(config, pooling=pooling)


def tiny_vision(family: str) -> ModelConfig:
    """A decoder beside a tower for images."""
    name, settings = CONFIGS[family]
    return registry.model_config({
        "architectures": [f"{name}ForConditionalGeneration"], "dtype": "bfloat16", **settings,
    })  # fmt: skip


def tiny_speech() -> ModelConfig:
    """A decoder behind an encoder of audio."""
    architectures = ["WhisperForConditionalGeneration"]
    return registry.model_config({"architectures": architectures, **WHISPER, "vocab_size": 91})


def tiny_text() -> ModelConfig:
    """A decoder behind an encoder of text."""
    architectures = ["BartForConditionalGeneration"]
    return registry.model_config({"architectures": architectures, **BART, "vocab_size": 91})


def tiny_stack() -> ModelConfig:
    """A decoder behind an encoder of its own kind of layers."""
    architectures = ["T5ForConditionalGeneration"]
    return registry.model_config({"architectures": architectures, **T5, "vocab_size": 91})


def abstract_model(config: ModelConfig) -> tuple[Any, Callable[..., Any]]:
    """A model without data: its parameters' shapes, and the function that rebuilds it."""
    return split_model(registry.build(config, dtype=jnp.bfloat16, rngs=None))


def trace_scores(config: ModelConfig) -> None:
    """Trace the model over whole sequences."""
    leaves, rebuild = abstract_model(config)
    tokens = jax.ShapeDtypeStruct((2, 9), jnp.int32)
    jax.eval_shape(lambda leaves, tokens: rebuild(leaves).score(tokens), leaves, tokens)


def trace_scores_with_pictures(config: ModelConfig) -> None:
    """Trace the model over whole sequences with pictures."""
    leaves, rebuild = abstract_model(config)
    assert config.vision is not None
    packed = PatchPacker(config.vision).pack([], 28, KEPT_EMBEDDINGS)
    each = jax.tree.map(lambda x: np.stack([x, x]), (packed.given, packed.rows))
    pictures = Pictures(*each, np.zeros((3, 2, 9), np.int32))
    tokens = jax.ShapeDtypeStruct((2, 9), jnp.int32)
    jax.eval_shape(lambda leaves, *given: rebuild(leaves).score(*given), leaves, tokens, pictures)


def trace_tower(config: ModelConfig, patches: int) -> None:
    """Trace the encoder of images."""
    leaves, rebuild = abstract_model(config)
    assert config.vision is not None
    packed = PatchPacker(config.vision).pack([], patches, KEPT_EMBEDDINGS)
    jax.eval_shape(encoding(rebuild), leaves, kept_embeddings(config), packed)


def trace_encoder(config: ModelConfig) -> None:
    """Trace the encoder whose output layers attend to."""
    leaves, rebuild = abstract_model(config)
    assert config.cross_encoder is not None
    packer = cross_packer(config)
    kept = jax.ShapeDtypeStruct((KEPT_EMBEDDINGS, packer.width), jnp.float32)
    packed = packer.pack([], config.cross_encoder.positions, KEPT_EMBEDDINGS)
    jax.eval_shape(encoding(rebuild), leaves, kept, packed)


def kept_embeddings(config: ModelConfig) -> jax.ShapeDtypeStruct:
    """The array that keeps what the encoder makes."""
    assert config.vision is not None
    return jax.ShapeDtypeStruct((KEPT_EMBEDDINGS, config.vision.width), jnp.float32)


def drafter_of(method: str | None, config: ModelConfig) -> Any:
    """A model without data that drafts in this way."""
    match method:
        case "draft_model" | "parallel":
            return Decoder(config, dtype=jnp.bfloat16, rngs=None)
        case "eagle":
            return Eagle(config)
        case "eagle3":
            return Eagle3(config, Eagle3Form((0, 1), config.vocab_size - 1), config)
        case "medusa":
            return Medusa(config, 2, 1, bias=False)
        case "mtp":
            return Mtp(replace(config, layers=config.layers[-1:]))
    return None


def trace_step(
    config: ModelConfig, bucket: Bucket, features: Features, *, stored: str | None = None,
    method: str | None = None,
    slots: int = 0,
) -> None:  # fmt: skip
    """Trace a step through the paged cache, which may draft, with a model of its own or heads. A
    step of a model with a tower takes embeddings of images, one of a mixture returns experts."""
    drafter = drafter_of(method, config)
    own_config = getattr(drafter, "config", None)
    own_specs = () if own_config is None else own_config.layer_specs
    groups = cache_groups(config.layer_specs + own_specs)
    shapes = StepShapes(
        groups, BLOCK, 8, max_rows=MAX_ROWS, max_model_len=MAX_LENGTH, attention="xla",
        most_drafts=2, draft_window=4,
        makes_drafts=drafter is not None, adapter_slots=slots, experts=chosen_experts(config),
        most_ahead=0 if config.vision is None else config.vision.most_ahead,
    )  # fmt: skip
    leaves, rebuild = abstract_model(config)
    count, program_of_drafter = len(leaves), None
    if method is not None:
        own, rebuild_drafter = split_model(drafter)
        program_of_drafter = DrafterProgram(
            DRAFTERS[method], rebuild_drafter, len(leaves), len(config.layers),
            getattr(drafter, "points", ()),
        )  # fmt: skip
        leaves += own
    held = cache_dtype("bfloat16", "xla", stored)
    state = abstract_state(config, groups, held, next_drafts=DRAFTS if program_of_drafter else 0)
    program = Program(
        bucket, replace(features, drafts=True), shapes, rebuild,
        Placement(one_device_mesh()), drafter=program_of_drafter,
        adapters=adapters_of(config, slots) if slots else None,
        head_leaves=tuple(range(count)), num_leaves=count,
    )  # fmt: skip
    leaves += program.adapters.leaves if program.adapters else ()
    given = StepGiven(jax.ShapeDtypeStruct((packed_size(bucket, shapes),), jnp.int32))
    if config.vision is not None:
        given = given._replace(inputs=(with_images(config, bucket),))
    if config.cross_encoder is not None:
        given = given._replace(inputs=(across(config, config.cross_encoder.positions),))
    found = jax.eval_shape(partial(body_of(program), program=program), leaves, state, given)
    if method is not None:
        state, (forwarded, output) = found
        given = DraftStageInput(forwarded.ran, forwarded.slots, output.tokens)
        own_program = replace(program, features=program.features.of(Part.DRAFT))
        jax.eval_shape(partial(BODIES[Part.DRAFT], program=own_program), leaves, state, given)


def trace_chain(config: ModelConfig, bucket: Bucket, features: Features) -> None:
    """Trace a step that is a chain of programs, with and without processors of the host, or one of
    a model that pools."""
    groups = cache_groups(config.layer_specs)
    shapes = StepShapes(
        groups, BLOCK, 8, max_rows=MAX_ROWS, max_model_len=MAX_LENGTH, attention="xla",
        **({"most_drafts": 2, "draft_window": 4} if config.pooling is None else {}),
    )  # fmt: skip
    leaves, rebuild = abstract_model(config)
    state = abstract_state(config, groups, cache_dtype("bfloat16", "xla", None), next_drafts=0)
    rows = (bucket.prefill_tokens, config.hidden_size)
    state = state._replace(prompts=jax.ShapeDtypeStruct(rows, jnp.float32))

    def run(part: Part, given: Any) -> Any:
        nonlocal state
        program = Program(
            bucket if part is Part.FORWARD else NO_TOKENS, features.of(part), shapes, rebuild,
            Placement(one_device_mesh()), head_leaves=tuple(range(len(leaves))),
            num_leaves=len(leaves),
        )  # fmt: skip
        body = partial(BODIES[part], program=program)
        state, found = jax.eval_shape(body, leaves, state, given)
        return found

    packed = jax.ShapeDtypeStruct((packed_size(bucket, shapes),), jnp.int32)
    slots = run(Part.FORWARD, StepGiven(packed)).slots
    number, targets = (jax.ShapeDtypeStruct(shape, jnp.int32) for shape in ((1,), (8,)))
    chunk = PromptChunk(number, targets, None)
    if config.pooling is not None:
        run(Part.POOL, slots)
        run(Part.POOL_TOKENS, chunk)
        return
    run(Part.SAMPLE, slots)
    logits = run(Part.LOGITS, slots)
    run(Part.CHOOSE, ChosenInput(slots, logits, logits))
    run(Part.SCORE, chunk)


def abstract_state(
    config: ModelConfig, groups: tuple[CacheGroup, ...], held: Any, *, next_drafts: int
) -> StepState:
    """The shapes of what a device keeps between steps."""
    cache = CacheConfig(groups, BLOCK, tuple(30 for _ in groups))
    sums = config.pooling is not None and config.pooling.sums_tokens
    return jax.eval_shape(
        lambda: empty_state(
            cache, held, MAX_ROWS, config.vocab_size, MAX_LENGTH, next_drafts=next_drafts,
            offsets=config.rotates_by_planes, summed=config.hidden_size if sums else 0,
        )
    )  # fmt: skip


def chosen_experts(config: ModelConfig) -> ChosenExperts | None:
    """The experts that steps of a mixture return."""
    found = [one.ffn for one in config.layers if isinstance(one.ffn, ExpertsConfig)]
    most = max((one.experts_per_token for one in found), default=0)
    return ChosenExperts(len(config.layers), most, "uint8") if found else None


def with_images(config: ModelConfig, bucket: Bucket) -> ImagesInput:
    """Some tokens of a plan stand for embeddings of images."""
    index, positions = (
        jax.ShapeDtypeStruct((*shape, bucket.num_tokens), jnp.int32) for shape in ((), (3,))
    )
    return ImagesInput(kept_embeddings(config), index, positions, index)


def across(config: ModelConfig, positions: int) -> CrossInput:
    """The rows of a plan read an encoder's output."""
    kept = jax.ShapeDtypeStruct((KEPT_EMBEDDINGS, config.cross_width), jnp.float32)
    return CrossInput(kept, jax.ShapeDtypeStruct((MAX_ROWS, positions), jnp.int32))


def adapters_of(config: ModelConfig, slots: int) -> AdapterProgram:
    """Arrays of adapters for all weights of a model."""
    weights = adapted_weights(config, 8, slots, implementation="xla")
    stacks = [stack for weight in weights.values() for stack in weight.stacks]
    shapes = tuple(jax.ShapeDtypeStruct(one.shape, jnp.bfloat16) for one in stacks)
    return AdapterProgram(weights, shapes, "xla")
