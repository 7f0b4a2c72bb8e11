"""Hundreds of random cases against float64: every head size, group, block size, type and option.

The default run takes the first few; the others are marked slow.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels.decode_attention import decode_attention
from pallas_kernels.decode_attention.context_parts import Split
from pallas_kernels.prefill_attention import prefill_attention
from tests.marks import slow
from tests.pallas_kernels.generated import Generated, decode_case, prefill_case
from tests.pallas_kernels.implementations import CPU, IMPLEMENTATIONS, SLOW_TRITON, TRITON

# How many of each there are, and how many of them the default run takes.
DECODE, PREFILL = (150, 3), (60, 1)
RELATIVE = 1e-4


def seeds(count: int, first: int) -> list[Any]:
    return [pytest.param(seed, marks=[pytest.mark.slow] * (seed >= first)) for seed in range(count)]


def check(case: Generated, operation: Callable[..., Any], implementation: str) -> None:
    arguments = {
        name: value if value is None or name == "layer" else jnp.asarray(value)
        for name, value in case.arguments.items()
    }
    out, lse, *_ = operation(
        **arguments, **case.options, return_lse=True, implementation=implementation
    )
    out, lse = np.asarray(out, np.float64), np.asarray(lse, np.float64)
    allowed = case.tolerance + RELATIVE * np.abs(case.expected) + 1e-5
    wrong = ~(np.abs(out - case.expected) <= allowed)  # NaN is wrong too
    assert not wrong.any(), f"{wrong.sum()} of {wrong.size} at {np.argwhere(wrong)[:5].tolist()}"
    np.testing.assert_allclose(lse, case.lse, rtol=RELATIVE, atol=1e-4)


@pytest.mark.parametrize("implementation", [CPU, TRITON])
@pytest.mark.parametrize("seed", seeds(*DECODE))
def test_decode(seed: int, implementation: str) -> None:
    check(decode_case(seed), decode_attention, implementation)


@pytest.mark.parametrize("implementation", [CPU, SLOW_TRITON])
@pytest.mark.parametrize("seed", seeds(*PREFILL))
def test_prefill(seed: int, implementation: str) -> None:
    check(prefill_case(seed), prefill_attention, implementation)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [CPU, TRITON, "xla"])
@pytest.mark.parametrize("seed", range(4))
def test_decode_of_16k_tokens(seed: int, implementation: str) -> None:
    check(decode_case(seed, longest=16_384), decode_attention, implementation)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", [CPU, TRITON])
@pytest.mark.parametrize("seed", range(2))
def test_prefill_after_4k_tokens(seed: int, implementation: str) -> None:
    check(prefill_case(seed, longest=4096), prefill_attention, implementation)


@pytest.mark.parametrize("seed", seeds(12, 1))
def test_the_reference_agrees(seed: int) -> None:
    """The same cases through the XLA implementation."""
    for make, operation in ((decode_case, decode_attention), (prefill_case, prefill_attention)):
        check(make(seed), operation, "xla")


@pytest.mark.parametrize("most", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("make", [decode_case, *slow(prefill_case)])
def test_bfloat16_kept_as_bits(make: Callable[[int], Generated], most: int) -> None:
    """As the engine keeps it on the CPU."""
    operation = decode_attention if make is decode_case else prefill_attention
    cases = [case for case in map(make, range(20)) if case.dtype == "bfloat16"]
    assert len(cases) > 1
    for case in cases[:most]:
        check(case, operation, "xla")
        case.arguments["cache"] = case.arguments["cache"].view(np.uint16)
        check(case, operation, "xla")


def test_cases_are_what_they_claim() -> None:
    cases = [decode_case(seed) for seed in range(30)]
    sizes = [case.arguments["cache"].shape for case in cases]
    assert {case.options["head_dim"] for case in cases} == {64, 80, 96, 128, 256}
    assert {size[3] for size in sizes} == {16, 24, 32, 64, 128}
    assert {case.dtype for case in cases} == {"float32", "float16", "bfloat16"}
    assert any((case.arguments["lengths"] == 0).any() for case in cases)
    assert any((case.arguments["lengths"] == 1).any() for case in cases)
    assert all(np.isnan(case.arguments["cache"].astype(np.float32)).any() for case in cases)
    splits = [
        Split(
            len(case.arguments["q"]), size[-1] // case.options["head_dim"],
            case.arguments["tables"].shape[1] * size[3],
        )
        for case, size in zip(cases, sizes, strict=True)
    ]  # fmt: skip
    assert any(split.parts == split.rows for split in splits)
    assert any(split.parts >= 4 * split.rows for split in splits)
    shared = [case.arguments["tables"] for case in cases]
    assert any(len(table) > 1 and (table[0, 0] == table[1:, 0]).any() for table in shared)


def test_a_wrong_result_is_seen() -> None:
    case = decode_case(3)

    def reads_too_far(q: Any, **arguments: Any) -> Any:
        arguments["lengths"] = arguments["lengths"] + 1
        return decode_attention(q, **arguments)

    with pytest.raises(AssertionError):
        check(case, reads_too_far, "xla")


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("seed", [4, *slow(0)])
def test_the_type_of_results(seed: int, implementation: str) -> None:
    """Asked for in bfloat16: the float32 result, rounded once."""
    case, rows = decode_case(seed), 3
    arrays = {name: case.arguments[name][:1] for name in ("q", "tables", "starts", "lengths")}
    many = {name: jnp.asarray(np.repeat(value, rows, axis=0)) for name, value in arrays.items()}
    rest = {"cache": jnp.asarray(case.arguments["cache"]), "layer": case.arguments["layer"]}
    run = partial(
        decode_attention, **many, **rest, **case.options, implementation=implementation
    )  # fmt: skip
    np.testing.assert_array_equal(run(dtype="bfloat16"), run().astype("bfloat16"))
