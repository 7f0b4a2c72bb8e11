"""The schemes that a step multiplies with, where its backend has its own for a declared one."""

from __future__ import annotations

from jengine.quantization import cpu
from jengine.quantization.cpu_shards import ShardedWeights
from jengine.quantization.scheme import WeightScheme, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from sharding.placement import Placement

# Backend -> declared scheme -> the scheme of the step.
STEP_SCHEMES: dict[str, dict[WeightScheme, WeightScheme]] = {
    "cpu": {UNQUANTIZED: cpu.PACKED},
    "cpu in place": {UNQUANTIZED: cpu.IN_PLACE},
}


def matmul_backend(kernels: str, *, pack: bool) -> str:
    """The backend of matmuls where attention runs in these kernels."""
    return "cpu in place" if kernels == "cpu" and not pack else kernels


def step_scheme(declared: WeightScheme, backend: str | None, placement: Placement) -> WeightScheme:
    """How a step multiplies weights that are declared so, on these devices."""
    chosen = STEP_SCHEMES.get(backend or "", {}).get(declared, declared)
    if isinstance(chosen, cpu.CpuWeights) and placement.is_split:
        return ShardedWeights(chosen, placement)
    return chosen


def fits(scheme: WeightScheme, weight: WeightShape) -> bool:
    """Whether a scheme that was chosen for a step can multiply this weight's shards."""
    return not isinstance(scheme, ShardedWeights) or scheme.fits(weight)
