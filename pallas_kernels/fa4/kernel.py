"""FlashAttention-4's paged forward kernels of `fa4-jax`, compiled by the CuTe DSL for one geometry.

One compiled object serves every number of tokens, tiles, pages and layers: only heads, head size,
block size and the mask are compile-time constants. No GPU is needed to compile.
"""

from __future__ import annotations

import importlib
from functools import cache
from threading import Lock
from typing import Any, NamedTuple

import cutlass
import numpy as np
from cutlass import Float32, Int32, Int64, cute
from cutlass.cutlass_dsl.cutlass import CuTeDSL
from cutlass.jax.compile import Arg, CompileResult, FunctionSpec, get_or_compile_kernel
from cutlass.jax.types import TensorSpec
from jax import tree

from pallas_kernels.fa4.absent import absent

# Keys per iteration; blocks of this many tokens are read by bulk copies, others by small ones.
KEYS = 128
# By head size on 9.0: queries per program, keys, whether probabilities stay in registers.
HOPPER_TILES = {64: (192, KEYS, True), 96: (192, KEYS, False), 128: (128, KEYS, True)}
# Registers per thread by warp role on 10.3, causal, heads of 128; softmax twice plus the others is
# 512. The package's 176, 64 and 96 spill 62 times with a paged cache; these do not in bfloat16.
B300_REGISTERS = {"softmax": 184, "correction": 80, "other": 64}
ALIGNMENT = 256  # of XLA's buffers
CUTLASS_NAMES = {"bfloat16": "BFloat16", "float16": "Float16"}
LOCK = Lock()  # steps are compiled in several threads


class Geometry(NamedTuple):
    """What a kernel is compiled for."""

    capability: int  # 90 for 9.0
    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    window: int | None
    scale: float
    dtype: str
    has_sinks: bool


def attention_kernel(geometry: Geometry) -> Any:
    """The package's kernel object for this device and mask."""
    head_dim, window = geometry.head_dim, geometry.window
    options = {
        "qhead_per_kvhead": geometry.heads // geometry.kv_heads,
        "is_causal": window is None, "is_local": window is not None, "pack_gqa": False,
        "paged_kv_non_tma": geometry.block_size != KEYS,
    }  # fmt: skip
    if geometry.capability == 90:
        queries, keys, in_registers = HOPPER_TILES[head_dim]
        return kernel_class("sm90")(
            getattr(cutlass, CUTLASS_NAMES[geometry.dtype]), head_dim, head_dim, tile_m=queries,
            tile_n=keys, num_stages=2, num_threads=(queries // 64 + 1) * 128,
            mma_pv_is_rs=in_registers, **options,
        )  # fmt: skip
    kernel = kernel_class("sm100")(
        head_dim, head_dim, m_block_size=128, n_block_size=KEYS, is_static_persistent=False,
        is_varlen_q=True, **options,
    )  # fmt: skip
    if geometry.capability == 103 and head_dim == 128 and window is None:
        for name, count in B300_REGISTERS.items():
            setattr(kernel, f"num_regs_{name}", count)
    return kernel


def kernel_class(device: str) -> Any:
    """Import the package's kernel class. Without torch, which it imports for functions that are not
    used here."""
    with absent("torch"):
        module = importlib.import_module(f"fa4_jax.cute.flash_fwd_{device}")
    return getattr(module, f"FlashAttentionForward{device.capitalize()}")


def launcher(geometry: Geometry) -> Any:
    """The host function that makes tensor views and launches the kernel."""
    kernel = attention_kernel(geometry)
    _, heads, kv_heads, head_dim, block_size, window, scale, _, has_sinks = geometry
    width = kv_heads * head_dim

    @cute.jit
    def launch(stream, q, cache, starts, queries, keys, table, sinks, out, lse):
        def of_heads(array):
            shape = (array.shape[0], heads, head_dim)
            layout = cute.make_layout(shape, stride=(heads * head_dim, head_dim, 1))
            return cute.make_tensor(array.iterator, layout)

        # Tensor views over the blocks of all planes; values begin one plane after keys.
        blocks = cache.shape[2]
        # Of 64 bits: a cache may have more elements than 2^31.
        block_stride = cute.assume(Int64(block_size * width), divby=block_size * width)

        def plane(first):
            shape = (cache.shape[0] * 2 * blocks - blocks, block_size, kv_heads, head_dim)
            layout = cute.make_layout(shape, stride=(block_stride, width, head_dim, 1))
            return cute.make_tensor(cache.iterator + first, layout)

        lse_view = cute.make_tensor(
            lse.iterator, cute.make_layout((heads, lse.shape[0]), stride=(1, heads))
        )
        kernel(
            of_heads(q), plane(0), plane(Int64(blocks) * (block_size * width)), of_heads(out),
            lse_view, Float32(scale), mCuSeqlensQ=starts, mSeqUsedQ=queries, mSeqUsedK=keys,
            mPageTable=table, window_size_left=None if window is None else Int32(window - 1),
            window_size_right=None if window is None else Int32(0),
            learnable_sink=sinks if has_sinks else None, stream=stream,
        )  # fmt: skip

    return launch


@cache
def compiled(geometry: Geometry, *, in_place: bool) -> CompileResult:
    """Compile for a geometry. With `in_place`, the outputs are aliased inputs."""
    dtype, ints, floats = np.dtype(geometry.dtype), np.dtype(np.int32), np.dtype(np.float32)
    given = [(dtype, 3), (dtype, 5), (ints, 1), (ints, 1), (ints, 1), (ints, 2), (floats, 1)]
    made = [(dtype, 3), (floats, 2)]
    inputs = _arguments([*given, *made] if in_place else given)
    outputs = _arguments(made)
    aliases = tuple((len(given) + index, index) for index in range(len(made))) if in_place else ()
    spec = FunctionSpec(
        inputs, tree.structure(tuple(range(len(inputs)))), outputs,
        tree.structure(() if in_place else tuple(range(len(outputs)))), aliases,
        tuple(one.spec for one in inputs), tuple(one.spec for one in outputs), None, False, (),
    )  # fmt: skip
    with LOCK:
        # The DSL's global state: it reads the environment once, and otherwise detects a GPU.
        CuTeDSL._get_dsl().envar.arch = f"sm_{geometry.capability}a"
        return get_or_compile_kernel(launcher(geometry), spec, compile_key=(geometry, in_place))


def _arguments(kinds: list[tuple[np.dtype, int]]) -> tuple[Arg, ...]:
    """Arrays of unknown shape."""
    return tuple(
        Arg(index, (1,) * rank, dtype, TensorSpec(ptr_assumed_align=ALIGNMENT))
        for index, (dtype, rank) in enumerate(kinds)
    )
