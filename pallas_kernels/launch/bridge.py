"""Lowers a Triton kernel to a custom call of a CUDA program; holds what depends on versions of jax
and triton.

Uses jax-triton where it is new enough to emit calls that XLA captures in CUDA graphs. Otherwise
compiles to PTX, wraps it in jaxlib's kernel call and lowers that as an FFI call.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import logging
import warnings
import zlib
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import jax
import triton
import triton.language as tl
from jax.interpreters import mlir
from jaxlib import gpu_triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from pallas_kernels.cuda_devices import DEVICES, KernelError, ptx_version

logger = logging.getLogger(__name__)
POINTERS = {
    "bool": "*i1",
    "int8": "*i8",
    "uint8": "*u8",
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
}
# XLA aligns every buffer to at least this many bytes.
ALIGNMENT = 16
# The first jax-triton whose calls XLA can put into a CUDA graph.
JAX_TRITON = (0, 4)


class Compiled(NamedTuple):
    """A compiled kernel: PTX, entry point and shared memory."""

    name: str
    ptx: str
    shared_bytes: int


def cuda_call(
    context: Any,
    operands: Sequence[Any],
    kernel: Any,
    launch: Any,
    in_place: tuple[int, ...],
    device: Any,
    capability: int,
) -> Any:
    """Lower one call; `launch` is a `Launch`."""
    if not hasattr(gpu_triton, "TritonKernelCall"):
        raise KernelError(
            f"{kernel.__name__} for {device}: the CUDA plugin of jax is not installed, so Triton "
            "kernels cannot be launched. Install jengine[cuda12] or jengine[cuda13]."
        )
    new = context.avals_out[: len(context.avals_out) - len(in_place)]
    arrays = [*context.avals_in, *new]
    pointers = pointer_types(kernel, arrays)
    with_context = f"{kernel.__name__}({', '.join(map(str, arrays))}) for {device} ({capability})"
    try:
        # Also where jax-triton will compile it again, to check the same limits.
        compiled = compile_kernel(
            kernel, pointers, launch.constants, launch.num_warps, launch.num_stages, capability
        )
    except Exception as error:
        raise KernelError(f"{with_context}: {error}") from error
    # XLA passes inputs, then outputs. Outputs aliased to inputs come last: the kernel takes these
    # arrays once, as inputs, and ignores the end of the list.
    aliases = {index: len(new) + number for number, index in enumerate(in_place)}
    if use_jax_triton(capability):
        return _through_jax_triton(context, operands, kernel, launch, new, aliases, capability)
    return _by_hand(context, operands, compiled, launch, len(arrays), aliases, capability)


def options_for(capability: int) -> dict[str, Any]:
    """Triton's options for a device. By default it writes newer PTX than jax's packages read."""
    return {"ptx_version": ptx_version(capability), "enable_fp_fusion": True}


def pointer_types(kernel: Any, arrays: Sequence[Any]) -> tuple[str, ...]:
    """Triton's pointer type of each array. Raises KernelError for unsupported dtypes."""
    unknown = [array for array in arrays if array.dtype.name not in POINTERS]
    if unknown:
        given = ", ".join(array.dtype.name for array in unknown)
        raise KernelError(f"{kernel.__name__}: given {given}; known are {', '.join(POINTERS)}")
    return tuple(POINTERS[array.dtype.name] for array in arrays)


@cache
def compile_kernel(
    kernel: Any,
    pointers: tuple[str, ...],
    constants: tuple[tuple[str, Any], ...],
    num_warps: int,
    num_stages: int,
    capability: int,
) -> Compiled:
    """Compile to PTX for a compute capability; needs no GPU. Raises KernelError."""
    names = list(kernel.arg_names)
    constant_names = [name for name, _ in constants]
    expected = names[: len(pointers)] + constant_names
    if sorted(names) != sorted(expected):
        raise KernelError(
            f"the kernel's parameters are {names}; given are {len(pointers)} arrays and the "
            f"constants {constant_names}"
        )
    signature = dict(zip(names, pointers, strict=False)) | dict.fromkeys(
        constant_names, "constexpr"
    )
    aligned = {(index,): [["tt.divisibility", ALIGNMENT]] for index in range(len(pointers))}
    source = ASTSource(
        fn=kernel,
        signature={name: signature[name] for name in names},
        constexprs={(names.index(name),): value for name, value in constants},
        attrs=aligned,
    )
    options = {**options_for(capability), "num_warps": num_warps, "num_stages": num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    metadata = compiled.metadata
    if getattr(metadata, "global_scratch_size", 0):
        raise KernelError(
            f"it asks for {metadata.global_scratch_size} bytes of global scratch memory, which no "
            "call provides"
        )
    limit = DEVICES[capability].shared_bytes
    if metadata.shared > limit:
        raise KernelError(
            f"it needs {metadata.shared} bytes of shared memory, and there are {limit}; use "
            "smaller tiles or fewer stages"
        )
    return Compiled(metadata.name, compiled.asm["ptx"], metadata.shared)


def _by_hand(
    context: Any,
    operands: Sequence[Any],
    compiled: Compiled,
    launch: Any,
    num_pointers: int,
    aliases: dict[int, int],
    capability: int,
) -> Any:
    kernel = gpu_triton.TritonKernel(
        compiled.name, launch.num_warps, 1, compiled.shared_bytes, compiled.ptx, "", capability
    )
    grid = (*launch.grid, 1, 1)[:3]
    parameters = [gpu_triton.create_array_parameter(0, ALIGNMENT)] * num_pointers
    call = gpu_triton.TritonKernelCall(kernel, *grid, parameters)
    rule = jax.ffi.ffi_lowering("triton_kernel_call_ffi", operand_output_aliases=aliases)
    return rule(context, *operands, opaque=zlib.compress(call.to_proto(compiled.name, b"")))


@cache
def use_jax_triton(capability: int) -> bool:
    """Whether jax-triton is installed, new enough for CUDA graphs, and works with this jax."""
    if importlib.util.find_spec("jax_triton") is None:
        return False
    version = importlib.metadata.version("jax-triton")
    if tuple(map(int, version.split(".")[:2])) < JAX_TRITON:
        return False
    problem = jax_triton_problem(capability)
    if problem:
        logger.warning(
            "jax-triton %s does not work with jax %s, so kernels are launched without it: %s",
            version, jax.__version__, problem,
        )  # fmt: skip
    return problem is None


def jax_triton_problem(capability: int) -> str | None:
    """Why a trivial kernel cannot be lowered through jax-triton, or None. Probed because neither
    package refuses incompatible versions of the other."""
    launch = importlib.import_module("jax_triton").triton_call

    def program(x: Any) -> Any:
        return launch(
            x, kernel=copy_one, out_type=[jax.ShapeDtypeStruct((1,), jax.numpy.int32)],
            grid=(1, 1, 1), compute_capability=capability, backend_options=options_for(capability),
        )  # fmt: skip

    try:
        traced = jax.jit(program).trace(jax.ShapeDtypeStruct((1,), jax.numpy.int32))
        traced.lower(lowering_platforms=("cuda",))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other way works
        return f"{type(error).__name__}: {error}"
    return None


@triton.jit
def copy_one(from_ptr, to_ptr):
    tl.store(to_ptr, tl.load(from_ptr))


def _through_jax_triton(
    context: Any,
    operands: Sequence[Any],
    kernel: Any,
    launch: Any,
    new: Sequence[Any],
    aliases: dict[int, int],
    capability: int,
) -> Any:
    jax_triton = importlib.import_module("jax_triton")
    written = [context.avals_in[index] for index in aliases]

    def call(*arrays: Any) -> Any:
        return jax_triton.triton_call(
            *arrays,
            kernel=kernel,
            name=kernel.__name__,
            out_type=[jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in [*new, *written]],
            grid=(*launch.grid, 1, 1)[:3],
            input_output_aliases=aliases,
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            compute_capability=capability,
            backend_options=options_for(capability),
            **dict(launch.constants),
        )

    with warnings.catch_warnings():
        # It recommends jax.Ref instead of aliases, which lowering rules cannot use.
        warnings.filterwarnings("ignore", "input_output_aliases is deprecated", DeprecationWarning)
        return mlir.lower_fun(call, multiple_results=True)(context, *operands)
