"""The schemes that a step multiplies with, where its backend has its own for a declared one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jengine.quantization import cpu
from jengine.quantization.cpu_codes import CpuCodes, kernels_take
from jengine.quantization.cpu_shards import ShardedWeights
from jengine.quantization.gpu import GpuWeights
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.scheme import WeightScheme, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from sharding.placement import Placement


def on_cpus(kernels: cpu.CpuWeights, placement: Placement) -> WeightScheme:
    """The kernels on a lone CPU, or on each device of a mesh."""
    return ShardedWeights(kernels, placement) if placement.is_split else kernels


# Backend -> declared scheme -> the scheme of a step on some devices.
STEP_SCHEMES: dict[str, dict[WeightScheme, Callable[[Placement], WeightScheme]]] = {
    "cpu": {UNQUANTIZED: partial(on_cpus, cpu.PACKED)},
    "cpu in place": {UNQUANTIZED: partial(on_cpus, cpu.IN_PLACE)},
    "triton": {UNQUANTIZED: GpuWeights},
    "triton, exact sums": {UNQUANTIZED: partial(GpuWeights, exact=True)},
}


def matmul_backend(kernels: str, *, pack: bool, exact: bool = False) -> str:
    """The backend of matmuls where attention runs in these kernels. `exact`: devices exchange parts
    of sums in float32 even where bfloat16 is faster."""
    if kernels == "triton" and exact:
        return "triton, exact sums"
    return "cpu in place" if kernels == "cpu" and not pack else kernels


def step_scheme(declared: WeightScheme, backend: str | None, placement: Placement) -> WeightScheme:
    """How a step multiplies weights that are declared so, on these devices."""
    if isinstance(declared, QuantizedWeights | QuantizedOnLoad):
        return quantized_scheme(declared, backend, placement)
    chosen = STEP_SCHEMES.get(backend or "", {}).get(declared)
    return declared if chosen is None else chosen(placement)


def quantized_scheme(
    declared: QuantizedWeights | QuantizedOnLoad, backend: str | None, placement: Placement
) -> WeightScheme:
    """The kernels of a lone CPU, where they have this format. Otherwise XLA multiplies."""
    has_kernels = backend == "cpu" and not placement.is_split and kernels_take(declared.format)
    return CpuCodes(declared) if has_kernels else declared


def fits(scheme: WeightScheme, weight: WeightShape) -> bool:
    """Whether a scheme that was chosen for a step can multiply this weight's shards."""
    return not isinstance(scheme, ShardedWeights | CpuCodes) or scheme.fits(weight)
