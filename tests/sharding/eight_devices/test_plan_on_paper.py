"""What `jengine plan` calculates is what devices of a real engine hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from jengine.capacity.device_layout import DeviceLayout
from jengine.capacity.device_memory import Memory
from tests.api.engines import tiny_engine
from tests.models.tiny_models import write_tiny_native


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", DeviceLayout(tp=8)),
        ("gemma3", DeviceLayout(tp=2)),
        ("mixtral", DeviceLayout(tp=8)),
        ("deepseek_v3", DeviceLayout(tp=4)),
        ("llama", DeviceLayout(tp=8, dcp=2)),
        ("gemma3", DeviceLayout(tp=4, dcp=2)),
        ("deepseek_v3", DeviceLayout(tp=4, dcp=4)),
        ("llama", DeviceLayout(tp=2, pcp=4)),
        ("deepseek_v3", DeviceLayout(tp=2, dcp=2, pcp=2)),
    ],
)
def test_bytes_of_a_device(tmp_path: Path, family: str, layout: DeviceLayout) -> None:
    folder = write_tiny_native(tmp_path, family)
    settings = {
        "max_model_len": 256,
        "attention_backend": "xla",  # the CPU's own kernels hold weights in another form
        "tensor_parallel_size": layout.tp,
        "decode_context_parallel_size": layout.dcp,
        "prefill_context_parallel_size": layout.pcp,
    }
    with tiny_engine(folder, **settings) as llm:
        engine = llm.engine
        memory = Memory(engine.model, layout, engine.schedule, engine.cache.block_size, 10**9)
        held = {"cache": 0}
        for part in llm.memory().parts:
            held[part.name] = held.get(part.name, 0) + part.bytes
        assert memory.weights == held["weights"]
        assert memory.row_state == held["row state"]
        blocks = zip(memory.groups, engine.cache.num_blocks, strict=True)
        assert sum(size * count for (_, size), count in blocks) == held["cache"]
