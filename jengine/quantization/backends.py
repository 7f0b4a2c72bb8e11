"""The schemes that a step multiplies with, where its backend has its own for a declared one."""

from __future__ import annotations

from jengine.quantization import cpu
from jengine.quantization.scheme import WeightScheme
from jengine.quantization.unquantized import UNQUANTIZED

# Backend -> declared scheme -> the scheme of the step.
STEP_SCHEMES: dict[str, dict[WeightScheme, WeightScheme]] = {
    "cpu": {UNQUANTIZED: cpu.PACKED},
    "cpu in place": {UNQUANTIZED: cpu.IN_PLACE},
}


def matmul_backend(kernels: str, *, pack: bool) -> str:
    """The backend of matmuls where attention runs in these kernels."""
    return "cpu in place" if kernels == "cpu" and not pack else kernels


def step_scheme(declared: WeightScheme, backend: str | None) -> WeightScheme:
    """How a step multiplies weights that are declared so."""
    return STEP_SCHEMES.get(backend or "", {}).get(declared, declared)
