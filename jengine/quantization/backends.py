"""Chooses the scheme that a step multiplies with, by backend and devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from jengine.quantization import cpu
from jengine.quantization.cpu_codes import CpuCodes, kernels_take
from jengine.quantization.cpu_shards import ShardedWeights
from jengine.quantization.gpu import GpuWeights
from jengine.quantization.gpu_codes import GpuCodes, codes_take
from jengine.quantization.gpu_fp8 import GpuFloat8, float8_takes, knows_float8
from jengine.quantization.on_load import QuantizedOnLoad
from jengine.quantization.placed_experts import PlacedExperts
from jengine.quantization.quantized import QuantizedWeights
from jengine.quantization.quantized_table import QuantizedTable, transposed
from jengine.quantization.repacked import Repacked
from jengine.quantization.rounded_head import CpuRoundedHead, RoundedHead
from jengine.quantization.scheme import WeightScheme, WeightShape
from jengine.quantization.unquantized import UNQUANTIZED
from jengine.quantization.whole_experts import WholeExperts
from sharding.placement import Placement


def on_cpus(kernels: cpu.CpuWeights, placement: Placement) -> WeightScheme:
    """CPU kernels on one device, or per device of a mesh."""
    return ShardedWeights(kernels, placement) if placement.is_split else kernels


# Backend -> declared scheme type -> the step's scheme on given devices.
STEP_SCHEMES: dict[str, dict[WeightScheme, Callable[[Placement], WeightScheme]]] = {
    "cpu": {UNQUANTIZED: partial(on_cpus, cpu.PACKED)},
    "cpu in place": {UNQUANTIZED: partial(on_cpus, cpu.IN_PLACE)},
    "triton": {UNQUANTIZED: GpuWeights},
    "triton, exact sums": {UNQUANTIZED: partial(GpuWeights, exact=True)},
}
GPU_BACKENDS = ("triton", "triton, exact sums")


def matmul_backend(kernels: str, *, pack: bool, exact: bool = False) -> str:
    """Matmul backend of an attention backend. `exact`: partial sums are all-reduced in float32
    rather than bfloat16."""
    if kernels == "triton" and exact:
        return "triton, exact sums"
    return "cpu in place" if kernels == "cpu" and not pack else kernels


def weight_scheme(
    declared: WeightScheme, weight: WeightShape, backend: str | None, placement: Placement
) -> WeightScheme:
    """A step's scheme for this weight on these devices."""
    if weight.groups is not None and placement.whole_experts and placement.ways("experts") > 1:
        alone = declared == UNQUANTIZED or backend in GPU_BACKENDS
        where = placement.of_one_device if alone else placement
        own = first_that_fits(declared, weight, backend, where)
        whole = WholeExperts(own, placement, rounds_sums=backend == "triton")
        redundant = placement.redundant_experts
        return whole if redundant is None else PlacedExperts(whole, redundant)
    return first_that_fits(declared, weight, backend, placement)


def first_that_fits(
    declared: WeightScheme, weight: WeightShape, backend: str | None, placement: Placement
) -> WeightScheme:
    """The best scheme that supports this weight's shards, else the declared one, which XLA
    multiplies."""
    chosen = step_schemes(declared, backend, placement)
    return next((scheme for scheme in chosen if fits(scheme, weight)), declared)


def step_scheme(declared: WeightScheme, backend: str | None, placement: Placement) -> WeightScheme:
    """The preferred scheme for a declared one, regardless of the weight."""
    return step_schemes(declared, backend, placement)[0]


def step_schemes(
    declared: WeightScheme, backend: str | None, placement: Placement
) -> list[WeightScheme]:
    """The backend's schemes for a declared scheme, best first; else the declared one."""
    if isinstance(declared, QuantizedWeights | QuantizedOnLoad):
        return [*quantized_schemes(declared, backend, placement), declared]
    if isinstance(declared, QuantizedTable):
        own = declared.quantized
        return [QuantizedTable(one) for one in (*quantized_schemes(own, backend, placement), own)]
    if isinstance(declared, RoundedHead):
        packs = backend == "cpu" and not placement.is_split
        return [CpuRoundedHead(declared.dtype) if packs else declared]
    chosen = STEP_SCHEMES.get(backend or "", {}).get(declared)
    return [declared if chosen is None else chosen(placement)]


def quantized_schemes(
    declared: QuantizedWeights | QuantizedOnLoad, backend: str | None, placement: Placement
) -> Iterator[Repacked]:
    """Kernel schemes that support this format: CPU codes, FP8 by cuBLASLt, or Triton. Otherwise XLA
    multiplies."""
    if backend == "cpu" and not placement.is_split and kernels_take(declared.format):
        yield CpuCodes(declared)
    if backend not in GPU_BACKENDS:
        return
    if float8_takes(declared.format, placement):
        yield GpuFloat8(declared)
    if codes_take(declared.format):
        exact, float8 = backend == "triton, exact sums", knows_float8(placement)
        yield GpuCodes(declared, placement, exact=exact, float8=float8)


def is_unfit(
    declared: WeightScheme, weight: WeightShape, backend: str | None, placement: Placement
) -> bool:
    """Whether XLA multiplies because the CPU kernels do not support this weight's shards."""
    chosen = step_scheme(declared, backend, placement)
    return backend not in GPU_BACKENDS and not fits(chosen, weight)


def fits(scheme: WeightScheme, weight: WeightShape) -> bool:
    """Whether the scheme's kernels support this weight's shards."""
    if isinstance(scheme, QuantizedTable):
        return fits(scheme.matrix, transposed(weight))
    return not isinstance(scheme, ShardedWeights | Repacked) or scheme.fits(weight)
