"""What `jengine plan` calculates is what devices of a real engine hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from jengine.planning.device_memory import Memory
from jengine.planning.layout import Layout
from tests.api.engines import tiny_engine
from tests.models.tiny_models import write_tiny_native


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "devices"), [("llama", 8), ("gemma3", 2), ("mixtral", 8), ("deepseek_v3", 4)]
)
def test_bytes_of_a_device(tmp_path: Path, family: str, devices: int) -> None:
    folder = write_tiny_native(tmp_path, family)
    # The CPU's own kernels hold weights in another form.
    settings = {"max_model_len": 256, "attention_backend": "xla"}
    with tiny_engine(folder, tensor_parallel_size=devices, **settings) as llm:
        engine = llm.engine
        memory = Memory(
            engine.model, Layout(tp=devices), engine.schedule, engine.cache.block_size, 10**9
        )
        held = {"cache": 0}
        for part in llm.memory().parts:
            held[part.name] = held.get(part.name, 0) + part.bytes
        assert memory.weights == held["weights"]
        assert memory.row_state == held["row state"]
        blocks = zip(memory.groups, engine.cache.num_blocks, strict=True)
        assert sum(size * count for (_, size), count in blocks) == held["cache"]
