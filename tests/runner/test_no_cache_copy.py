"""The cache is updated in place: shown by what XLA says about the compiled step.

Everything here is abstract, so a large cache costs no memory.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from jengine.config import (
    AttentionConfig,
    CacheConfig,
    LatentConfig,
    LayerConfig,
    MixerConfig,
    MlpConfig,
    ModelConfig,
)
from jengine.models.decoder import Decoder
from jengine.runner.programs.compiler import Compiled, StepCompiler
from jengine.runner.step.attention_backend import cache_dtype
from jengine.runner.step.state import empty_state, placed_state, state_bytes
from jengine.runner.variants.buckets import Bucket, StepShapes
from jengine.runner.variants.features import variants
from sharding.mesh import one_device_mesh
from sharding.placement import Placement
from tests.marks import slow
from tests.models.split import split_model
from tests.pallas_kernels.implementations import CPU

VOCAB = 64
BLOCKS = 20_000
BUCKETS = {
    "decode": Bucket(8, 0, 16),
    "mixed": Bucket(8, 64, 16),
    "burst": Bucket(8, 0, 16, repeats=4),
}


HEADS = AttentionConfig(num_heads=4, num_kv_heads=2, head_dim=16)
LATENT = LatentConfig(num_heads=4, kv_rank=32, nope_dim=8, rope_dim=8, value_dim=12)


def compiled_step(
    bucket: Bucket, variant: str, dtype: str, attention: str = "xla", mixer: MixerConfig = HEADS
) -> tuple[Compiled, CacheConfig, int]:
    """A step of a model with full and window layers; its cache, and the state's bytes."""
    full = LayerConfig(mixer, MlpConfig(64))
    sliding = replace(full, mixer=replace(full.mixer, window=32))
    config = ModelConfig("test", VOCAB, 32, max_position=256, layers=(full, sliding, full))
    shapes = StepShapes(config.groups, 16, 32, max_rows=8, max_model_len=256, attention=attention)
    leaves, rebuild = split_model(Decoder(config, dtype=jnp.dtype(dtype), rngs=nnx.Rngs(0)))
    cache = CacheConfig(config.groups, 16, (BLOCKS, BLOCKS // 2))
    placement = Placement(one_device_mesh())
    empty = jax.eval_shape(lambda: empty_state(cache, cache_dtype(dtype, attention), 8, VOCAB, 256))
    state = placed_state(empty, placement, cache.groups)
    abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), leaves)
    compiler = StepCompiler(shapes, rebuild, abstract, state, placement, width=config.hidden_size)
    return (
        compiler.compile(bucket, variants(5, "raw_logprobs")[variant])[0],
        cache,
        state_bytes(state.caches),
    )


@pytest.mark.parametrize(
    ("name", "variant", "dtype"),
    [
        pytest.param("decode", "greedy", "float32", marks=pytest.mark.slow),
        pytest.param("mixed", "full", "bfloat16", marks=pytest.mark.slow),
        pytest.param("burst", "greedy", "bfloat16", marks=pytest.mark.slow),
        pytest.param("burst", "full", "float32", marks=pytest.mark.slow),
        pytest.param("decode", "full", "float32", marks=pytest.mark.slow),
        pytest.param("mixed", "greedy", "float32", marks=pytest.mark.slow),
        pytest.param("decode", "greedy", "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_the_cache_is_never_copied(name: str, variant: str, dtype: str) -> None:
    check_cache_is_never_copied(*compiled_step(BUCKETS[name], variant, dtype))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mixed", *slow("decode")])
def test_entries_of_latent_attention_are_written_in_place(name: str) -> None:
    step = compiled_step(BUCKETS[name], "greedy", "float32", mixer=LATENT)
    check_cache_is_never_copied(*step, shape=f"[2,{BLOCKS},16,40]")


@pytest.mark.parametrize("implementation", [CPU])
@pytest.mark.parametrize("name", ["mixed", *slow("decode", "burst")])
def test_kernels_write_the_cache_in_place(name: str, implementation: str) -> None:
    step = compiled_step(BUCKETS[name], "greedy", "bfloat16", implementation)
    assert "jengine_rotate_and_write" in step[0].as_text()
    check_cache_is_never_copied(*step)


def check_cache_is_never_copied(
    compiled: Compiled, cache: CacheConfig, cache_bytes: int, shape: str = f"[2,2,{BLOCKS},16,32]"
) -> None:
    assert cache_bytes > 80e6
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes >= cache_bytes, "donated buffers must be written in place"
    assert memory.temp_size_in_bytes < cache_bytes / 50
    text = compiled.as_text()
    sizes = copied_sizes(text)
    smallest_plane = min(cache.num_blocks) * cache.block_size * 2 * 16
    assert "parameter(" in text and shape in text, "the cache has another shape"
    assert max(sizes, default=0) < smallest_plane, "something as large as a cache plane is copied"


def copied_sizes(text: str) -> list[int]:
    """Elements of every array that the program copies."""
    found = re.findall(r"= (?:\()?\w+\[([\d,]*)\]\S*(?: [^=]*?)? copy(?:-start)?\(", text)
    return [math.prod(int(size) for size in shape.split(",") if size) for shape in found]


def test_a_copy_would_be_seen() -> None:
    def step(cache: jax.Array) -> tuple[jax.Array, jax.Array]:
        return cache.at[0].set(1.0), cache  # the old cache is wanted as well

    cache = jax.ShapeDtypeStruct((1000, 500), jnp.float32)
    text = jax.jit(step, donate_argnums=0).lower(cache).compile().as_text()
    assert 1000 * 500 in copied_sizes(text)
