"""`auto` takes FlashAttention-4's kernels where this device has proved them and a layer has use."""

from __future__ import annotations

import logging
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import jengine
from jengine.assembly import device_side, prompt_kernels
from jengine.assembly.prompt_kernels import on_paper, with_prompt_kernels
from jengine.assembly.settings.args import EngineArgs
from jengine.assembly.sizes.device_defaults import block_tokens
from jengine.capacity.accelerators import ACCELERATORS
from jengine.capacity.device_layout import DeviceLayout
from jengine.capacity.paper import paper_plan
from jengine.config import AttentionConfig, CacheGroup, CacheSpec
from jengine.runner.step import attention_backend
from pallas_kernels import choice
from pallas_kernels.fa4 import rules

SERVED = AttentionConfig(32, 8, 128)


def model(*mixers: AttentionConfig, dtype: str = "bfloat16") -> Any:
    mixers = mixers or (SERVED,)
    layers = [SimpleNamespace(mixers=(mixer,)) for mixer in mixers]
    groups = [
        CacheGroup(CacheSpec("full", mixer.num_kv_heads, mixer.head_dim), (index,))
        for index, mixer in enumerate(mixers)
    ]
    return SimpleNamespace(layers=layers, groups=tuple(groups), dtype=dtype)


def asked(**settings: Any) -> Any:
    return EngineArgs.checked("test", model="demo", **settings).groups


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A GPU of capability 9.0 that has all packages."""
    kind = SimpleNamespace(compute_capability="9.0", device_kind="NVIDIA H200")
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(jax, "devices", lambda: [kind])
    too_large = "the kernels take head dimensions up to 256"
    for room in (choice, attention_backend):
        monkeypatch.setattr(
            room, "triton_problem", lambda _, heads: too_large if max(heads) > 256 else None
        )
    monkeypatch.setattr(attention_backend, "unserved_device", lambda _: None)
    for room in (rules, choice, prompt_kernels):
        monkeypatch.setattr(room, "missing", lambda: None)
    return kind


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    ("settings", "config", "chosen", "block_size"),
    [
        ({}, model(), "fa4", 128),
        ({"block_size": 128}, model(), "fa4", 128),
        # One layer is enough.
        ({}, model(replace(SERVED, head_dim=256), SERVED), "fa4", 128),
        # Where Triton cannot run, these do not either.
        ({}, model(replace(SERVED, head_dim=512), SERVED), "auto", 16),
        ({"block_size": 16}, model(), "auto", 16),
        ({"attention_backend": "triton"}, model(), "triton", 16),
        ({"kv_cache_dtype": "fp8"}, model(), "auto", 16),
        ({"deterministic": True}, model(), "auto", 16),
        ({}, model(dtype="float32"), "auto", 16),
        ({}, model(replace(SERVED, head_dim=256)), "auto", 16),
        ({}, model(replace(SERVED, soft_cap=30.0)), "auto", 16),
    ],
)
def test_it_is_chosen_where_a_layer_has_use(
    settings: dict[str, Any], config: Any, chosen: str, block_size: int
) -> None:
    found = with_prompt_kernels(asked(**settings), config)
    assert (found.steps.attention_backend, block_tokens(found)) == (chosen, block_size)
    assert on_paper(asked(**settings), config, 90) == found
    assert on_paper(asked(**settings), config, 100).steps.attention_backend != "fa4"


@pytest.mark.parametrize(("name", "block_size"), [("h100", 128), ("h200", 128), ("a100", 16)])
def test_plans_have_the_blocks_of_engines_there(
    name: str, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned() -> int:
        layout, work = DeviceLayout(1, 1, 1), (1, 1024)
        paper = paper_plan("llama-8b", {}, ACCELERATORS[name], layout, work, network=100.0)
        return paper.memory.block_size

    monkeypatch.setattr(rules, "missing", lambda: "fa4-jax is not installed.")
    assert planned() == 16
    monkeypatch.setattr(rules, "missing", lambda: None)
    assert planned() == block_size


@pytest.mark.parametrize("capability", ["10.0", "10.3"])
def test_where_no_device_has_run_them_it_is_not_chosen_and_the_log_says_so(
    capability: str, device: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    device.compute_capability = capability
    assert with_prompt_kernels(asked(), model()).steps.attention_backend == "auto"
    assert "no device of this kind has run them yet" in caplog.text


def test_other_devices_and_machines_without_the_packages_say_nothing_of_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    assert with_prompt_kernels(asked(), model()).steps.attention_backend == "auto"
    assert not caplog.messages


def test_an_engine_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(found: Any, config: Any) -> Any:
        raise LookupError(found.steps.attention_backend, len(config.layers))

    monkeypatch.setattr(device_side, "with_prompt_kernels", told)
    with pytest.raises(LookupError, match="auto"):
        jengine.LLM("demo", skip_tokenizer_init=True, show_progress=False)
