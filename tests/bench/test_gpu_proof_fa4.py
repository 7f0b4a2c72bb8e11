"""FlashAttention-4's kernels as compiled for a GPU that is not here, where jengine[fa4] is."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jengine.bench.gpu_proof.fa4_report import markdown, triton_case
from tests.marks import slow

ROW = {
    "capability": 90, "heads": 32, "kv_heads": 8, "head_dim": 128, "block_size": 128,
    "window": None, "dtype": "bfloat16", "has_sinks": False, "registers": 168, "spills": 0,
    "matmuls": 48, "bulk_copies": 10, "small_copies": 0,
}  # fmt: skip
TRITONS = {"kernels": [
    {"case": "bfloat16 dim 128 group 4 block 16", "kernel": "prefill_tiles", "capability": 90,
     "registers": 224, "spilled_bytes": 4, "wgmma": 2},
    {"case": "bfloat16 dim 128 group 4 block 16", "kernel": "decode_parts", "capability": 90,
     "registers": 80, "spilled_bytes": 0, "wgmma": 0},
]}  # fmt: skip


def test_tables_have_both_kernels_side_by_side() -> None:
    windowed = {**ROW, "heads": 56, "window": 128, "has_sinks": True, "dtype": "float16"}
    text = markdown({"versions": {"jax": "1"}, "kernels": [ROW, windowed], "steps": []}, TRITONS)
    assert "| 4, 128, causal | 9.0 | 168 | 0 | 48 | 10 | 0 | 224 | 4 | 2 |" in text
    assert "| 7, 128, window 128, sinks, float16 | 9.0 | 168 | 0 | 48 | 10 | 0 |  |  |  |" in text
    assert triton_case(windowed) == "float16 dim 128 group 7 block 16 all options"


@pytest.mark.parametrize("capability", [90, *slow(100, 103)])
def test_kernels_multiply_in_warp_groups_copy_in_bulk_and_spill_little(capability: int) -> None:
    pytest.importorskip("fa4_jax", reason="jengine[fa4] is not installed")
    pytest.importorskip("jaxlib.gpu_triton", reason="jax's CUDA plugin is not installed")
    proof = importlib.import_module("jengine.bench.gpu_proof.fa4")
    row = proof.kernel_row(next(proof.geometries(capability)))
    assert row["matmuls"] > 0
    assert row["bulk_copies"] > 0
    assert row["small_copies"] == 0
    assert row["spills"] <= {90: 0, 100: 16, 103: 64}[capability]


def test_torch_is_not_imported(tmp_path: Path) -> None:
    pytest.importorskip("fa4_jax", reason="jengine[fa4] is not installed")
    (tmp_path / "torch.py").write_text("raise SystemExit('torch is imported')")
    program = """
from pallas_kernels.fa4.kernel import kernel_class
assert kernel_class("sm90").__name__ == "FlashAttentionForwardSm90"
assert kernel_class("sm100").__name__ == "FlashAttentionForwardSm100"
"""
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
