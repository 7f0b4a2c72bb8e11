"""FlashAttention-4's kernels as compiled for a GPU that is not here, where jengine[fa4] is."""

from __future__ import annotations

import importlib

import pytest

from tests.marks import slow

pytest.importorskip("fa4_jax", reason="jengine[fa4] is not installed")
pytest.importorskip("jaxlib.gpu_triton", reason="jax's CUDA plugin is not installed")


@pytest.mark.parametrize("capability", [90, *slow(100)])
def test_kernels_multiply_in_warp_groups_copy_in_bulk_and_spill_little(capability: int) -> None:
    proof = importlib.import_module("jengine.bench.gpu_proof.fa4")
    row = proof.kernel_row(next(proof.geometries(capability)))
    assert row["matmuls"] > 0
    assert row["bulk_copies"] > 0
    assert row["small_copies"] == 0
    assert row["spills"] <= (0 if capability == 90 else 16)
