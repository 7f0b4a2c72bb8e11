"""How many programs of a kernel are launched follows from the device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pallas_kernels import shapes
from pallas_kernels.decode_attention.context_parts import Split
from pallas_kernels.quantized_matmul.triton import split_for
from pallas_kernels.token_sampling.triton import divide


@pytest.mark.parametrize(
    ("cores", "programs", "split", "parts"), [(58, 29, 2, 8), (132, 66, 8, 17), (None, 66, 8, 17)]
)
def test_a_kernel_has_programs_for_every_multiprocessor(
    cores: int | None, programs: int, split: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SimpleNamespace() if cores is None else SimpleNamespace(core_count=cores)
    monkeypatch.setattr(shapes.jax, "local_devices", lambda: [device])
    assert Split(rows=1, kv_heads=8, tokens=1 << 20).least == programs
    assert split_for(8, 4096, 16, 64) == split
    assert divide(32, 128_000, 512).count == parts
