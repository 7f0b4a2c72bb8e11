"""The shapes and dtypes in annotations of device functions are those that they really get.

Engines never import jaxtyping: the annotations are strings. Here they are resolved, every function
that has some is wrapped, and models are traced through all of them, with and without a cache.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from functools import partial, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest
from jax import Array

from jengine.config import CacheConfig, ModelConfig, cache_groups
from jengine.models.decoder import Decoder
from jengine.models.eagle import Eagle
from jengine.models.medusa import Medusa
from jengine.models.norms import NoNorm
from jengine.models.registry import model_config
from jengine.quantization import codes
from jengine.runner.step.attention_backend import cache_dtype
from jengine.runner.step.guessers import METHODS
from jengine.runner.step.multi_step import multi_step
from jengine.runner.step.program import GuesserProgram, Program
from jengine.runner.step.state import empty_state
from jengine.runner.step.step import step
from jengine.runner.step.step_input import packed_size
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.runner.variants.features import Features, variants
from jengine.sampling import (
    SamplingInput,
    empty_row_state,
    filters,
    masks,
    pack_admission,
    processors,
)
from jengine.sampling import state as sampling_state
from jengine.sampling.processor_sets import ProcessorSet
from pallas_kernels import cache_write, grouped_matmul, token_sampling
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.models.split import split_model
from tests.models.tiny_models import FAMILIES, tiny_settings

if TYPE_CHECKING:
    from jaxtyping import Float

ROOMS = (
    "jengine.layers",
    "jengine.sampling",
    "jengine.models",
    "jengine.quantization",
    "jengine.runner.step",
)
KERNELS = (
    "pallas_kernels.layout",
    "pallas_kernels.cache_write",
    "pallas_kernels.decode_attention",
    "pallas_kernels.grouped_matmul",
    "pallas_kernels.prefill_attention",
    "pallas_kernels.mixed_attention",
    "pallas_kernels.token_sampling",
)
SHAPED = re.compile(r"""\[Array, ["']""")
# Declared for others to define.
INTERFACES = {
    "jengine.models.language_model.LanguageModel.__call__",
    "jengine.models.language_model.LanguageModel.logits",
    "jengine.models.language_model.LanguageModel.live_logits",
    "jengine.quantization.scheme.WeightScheme.lookup",
    "jengine.quantization.scheme.WeightScheme.normalize",
    "jengine.quantization.scheme.WeightScheme.softmax",
    "jengine.quantization.scheme.WeightScheme.multiply",
    "jengine.quantization.scheme.WeightScheme.multiply_groups",
    "jengine.quantization.scheme.WeightScheme.mix_experts",
    "jengine.runner.step.guessing.Guesser.__call__",
}
# Sizes that no other test has, so that functions jitted by themselves are traced again here.
SIZES = {"vocab_size": 89, "hidden_size": 40, "intermediate_size": 52}


def modules() -> Iterator[ModuleType]:
    for room in ROOMS:
        package = importlib.import_module(room)
        for found in pkgutil.iter_modules(package.__path__, f"{room}."):
            yield importlib.import_module(found.name)
    yield from map(importlib.import_module, KERNELS)


def has_shapes(function: Any) -> bool:
    hints = getattr(function, "__annotations__", {})
    return any(isinstance(hint, str) and SHAPED.search(hint) for hint in hints.values())


def annotated() -> dict[str, tuple[Any, str, Callable[..., Any]]]:
    """Name -> (module or class, attribute, function) of everything that states shapes."""
    found: dict[str, tuple[Any, str, Callable[..., Any]]] = {}
    for module in modules():
        classes = [one for one in vars(module).values() if inspect.isclass(one)]
        for owner in (module, *(one for one in classes if one.__module__ == module.__name__)):
            path = module.__name__ + ("" if owner is module else f".{owner.__name__}")
            for name, function in list(vars(owner).items()):
                own = getattr(function, "__module__", None) == module.__name__
                if own and not inspect.isclass(function) and has_shapes(function):
                    found[f"{path}.{name}"] = (owner, name, function)
    return found


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is what a hint says; dimensions are those of the open jaxtyping context."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        parts = typing.get_args(hint)
        if parts[-1] is Ellipsis and isinstance(value, tuple):
            parts = parts[:1] * len(value)
        alike = isinstance(value, tuple) and len(value) == len(parts)
        return alike and all(map(fits, value, parts))
    if hint is type(None):
        return value is None
    if inspect.isclass(hint) and issubclass(hint, jaxtyping.AbstractArray):
        return isinstance(value, hint)
    return isinstance(value, hint) if hint in (int, float, str, bool) else True


def checked(name: str, function: Callable[..., Any], seen: set[str]) -> Callable[..., Any]:
    """The function, failing where an argument or the result is not what its annotation says."""
    plain = inspect.unwrap(function)
    names = {**vars(jaxtyping), **vars(sys.modules[plain.__module__])}
    hints = typing.get_type_hints(plain, names)
    signature = inspect.signature(plain)

    @wraps(plain)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with jaxtyping.jaxtyped("context"):
            for argument, value in signature.bind(*args, **kwargs).arguments.items():
                if argument in hints and not fits(value, hints[argument]):
                    raise TypeError(f"{name}: {argument} is {shown(value)}, not {hints[argument]}")
            result = function(*args, **kwargs)
            if not fits(result, hints["return"]):
                raise TypeError(f"{name} returns {shown(result)}, not {hints['return']}")
        seen.add(name)
        return result

    return wrapped


def shown(value: Any) -> str:
    return str(jax.tree.map(lambda x: getattr(x, "aval", x), value))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of annotated functions that were called, while all of them are checked."""
    names: set[str] = set()
    packages = ("jengine", "pallas_kernels")
    for name, (owner, attribute, function) in annotated().items():
        wrapped = checked(name, function, names)
        if inspect.isclass(owner):
            monkeypatch.setattr(owner, attribute, wrapped)
            continue
        for module in [one for key, one in sys.modules.items() if key.split(".")[0] in packages]:
            for alias, value in list(vars(module).items()):
                if value is function:
                    monkeypatch.setattr(module, alias, wrapped)
    return names


def tiny(family: str) -> ModelConfig:
    settings = {"architectures": [FAMILIES[family]], "dtype": "bfloat16"}
    return model_config({**tiny_settings(family, **SIZES), **settings})


def abstract_model(config: ModelConfig) -> tuple[Any, Any]:
    """A model without data: its parameters' shapes, and the function that rebuilds it."""
    leaves, rebuild = split_model(Decoder(config, dtype=jnp.bfloat16, rngs=None))
    return leaves, rebuild


def trace_scores(config: ModelConfig) -> None:
    """Trace the model over whole sequences."""
    leaves, rebuild = abstract_model(config)
    tokens = jax.ShapeDtypeStruct((2, 9), jnp.int32)
    jax.eval_shape(lambda leaves, tokens: rebuild(leaves).score(tokens), leaves, tokens)


def guesser_of(method: str | None, config: ModelConfig) -> Any:
    """A model without data that guesses in this way."""
    match method:
        case "draft_model":
            return Decoder(config, dtype=jnp.bfloat16, rngs=None)
        case "eagle":
            return Eagle(config)
        case "medusa":
            return Medusa(config, 2, 1, bias=False)
    return None


def trace_step(
    config: ModelConfig, bucket: Bucket, features: Features, *, stored: str | None = None,
    method: str | None = None,
) -> None:  # fmt: skip
    """Trace a step through the paged cache, which may guess, with a model of its own or heads."""
    guesser = guesser_of(method, config)
    own_layers = len(getattr(guesser, "layers", ()))
    groups = cache_groups(config.cache_specs + config.cache_specs[:own_layers])
    shapes = StepShapes(
        groups, 8, 8, max_rows=4, max_model_len=128, attention="xla", most_drafts=2,
        draft_window=4, makes_guesses=guesser is not None,
    )  # fmt: skip
    leaves, rebuild = abstract_model(config)
    guesses, program_of_guesser = 0, None
    if method is not None and guesser is not None:
        own, rebuild_guesser = split_model(guesser)
        program_of_guesser = GuesserProgram(
            METHODS[method], rebuild_guesser, len(leaves), len(config.layers)
        )
        leaves, guesses = leaves + own, 2
    cache = CacheConfig(groups, 8, tuple(30 for _ in groups))
    held = cache_dtype("bfloat16", "xla", stored)
    state = jax.eval_shape(
        lambda: empty_state(cache, held, 4, config.vocab_size, 128, guesses=guesses)
    )
    program = Program(
        bucket, features, shapes, rebuild, Placement(one_device_mesh()),
        guesser=program_of_guesser,
    )  # fmt: skip
    packed = jax.ShapeDtypeStruct((packed_size(bucket, shapes),), jnp.int32)
    run = multi_step if bucket.is_multi_step else step
    jax.eval_shape(partial(run, program=program), leaves, state, packed)


def trace_what_steps_leave_out() -> None:
    """Trace what is not part of a step on a CPU."""
    vocab, rows = SIZES["vocab_size"], 3
    jax.eval_shape(NoNorm().__call__, np.zeros((rows, 4), np.float32))
    state = jax.eval_shape(lambda: empty_row_state(rows, vocab, 64))
    admission = pack_admission([5, 6], 2, vocab=vocab, max_len=64)
    jax.eval_shape(lambda *given: sampling_state.admit(*given), state, np.int32(1), admission)
    logits, floats = np.zeros((rows, vocab), np.float32), np.ones(rows, np.float32)
    keys, ints = np.zeros((rows, 2), np.uint32), np.zeros(rows, np.int32)
    jax.eval_shape(
        lambda *given: token_sampling.sample_tokens(*given, implementation="xla"),
        *(logits, keys, floats, ints, floats, floats),
    )
    # Tables hold these two: a sampler calls the functions that they held when they were made.
    jax.eval_shape(filters.cut_logits, logits, ints, floats, floats)
    jax.eval_shape(lambda x: token_sampling.best_tokens(x, implementation="xla"), logits)
    cache, new = np.zeros((2, 2, 5, 4, 20), np.float32), np.zeros((7, 2, 10), np.float32)
    jax.eval_shape(
        lambda *given: cache_write.write_cache(*given, implementation="xla"),
        *(cache, np.int32(1), new, new, np.zeros(7, np.int32)),
    )
    words = np.zeros((1, state.mask.shape[1]), np.int32)
    jax.eval_shape(masks.with_masks, state.mask, np.zeros(1, np.int32), words)
    slots = SamplingInput(**dict.fromkeys(SamplingInput._fields, ints))
    used = [ProcessorSet(1, (lambda ids, row: row,))]
    jax.eval_shape(lambda x, kept: processors.processed_logits(x, kept, slots, used), logits, state)
    jax.eval_shape(mixed_groups, new[0], np.zeros((2, 10, 6)), np.zeros((2, 3, 5)), new[0, :, :4])


def mixed_groups(x: Array, first: Array, second: Array, scales: Array) -> Array:
    groups = grouped_matmul.sort_by_group(jnp.zeros(scales.size, jnp.int32), 2)
    inside = grouped_matmul.multiply_tokens(x, first, groups, activation="silu")
    return grouped_matmul.combine_rows(inside, second, groups, scales)


def trace_codes() -> None:
    """Trace packing and rounding of weights, which happens when they are loaded."""
    halves, numbers = np.zeros((2, 6, 3), np.uint8), np.ones((6, 3), np.float32)
    jax.eval_shape(lambda x: codes.fp4_values(codes.unpaired(codes.paired(x, 1), 1)), halves)
    for kind in ("int8", "fp8"):
        jax.eval_shape(lambda x, kind=kind: codes.rounded(x, kind), numbers)
        jax.eval_shape(lambda x, kind=kind: codes.scale_of(x, kind, 0), numbers)


def test_every_annotation_is_true(seen: set[str]) -> None:
    known = variants(5, "raw_logprobs")
    for family in ("mistral", "qwen3", "gemma2", "gpt2", "deepseek_v3", "gpt_oss", "llama4"):
        trace_scores(tiny(family))
    for family in ("mistral", "qwen3_moe", "olmo2", "deepseek_v2"):
        trace_step(tiny(family), Bucket(4, 16, 16), known["scored"])
    trace_step(tiny("mistral"), Bucket(4, 0, 16, repeats=3), known["greedy"])
    for method in METHODS:
        trace_step(tiny("mistral"), Bucket(4, 16, 16), known["sampled"], method=method)
    trace_step(tiny("mistral"), Bucket(4, 16, 16), known["sampled"], stored="int8")
    trace_what_steps_leave_out()
    trace_codes()
    assert annotated().keys() - seen == INTERFACES
    assert len(seen) > 50


def swapped(x: Float[Array, "a b"]) -> Float[Array, "b a"]:
    """Wrong unless both dimensions are equal."""
    return x


def test_a_wrong_annotation_fails() -> None:
    guarded = checked("swapped", swapped, set())
    guarded(jnp.zeros((3, 3)))
    with pytest.raises(TypeError, match="swapped returns"):
        guarded(jnp.zeros((2, 3)))
    with pytest.raises(TypeError, match="x is"):
        guarded(jnp.zeros((2, 3), jnp.int32))
