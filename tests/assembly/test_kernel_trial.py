"""Kernels for prompts that are wrong on a device are not used there, and the log says why."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jengine
from jengine.assembly import device_side
from jengine.assembly.kernel_trial import mixers_of, trials, with_right_kernels
from jengine.config import AttentionConfig
from jengine.models.attention import Attention
from jengine.models.linear import Factory
from pallas_kernels.fa4 import trial as trial_module
from pallas_kernels.fa4.trial import Trial, difference, first_difference, largest_error
from pallas_kernels.prefill_attention.xla import prefill_attention_xla
from sharding.mesh import engine_mesh
from sharding.placement import Placement

USUAL = AttentionConfig(8, 2, 64)
BASE = Trial(8, 2, 64, 128, None, None, False, "bfloat16")


@dataclass(frozen=True)
class Shapes:
    prompts: str | None = "fa4"
    attention: str = "triton"
    block_size: int = 128


@dataclass(frozen=True)
class Steps:
    shapes: Shapes = Shapes()
    cache_dtype: Any = jnp.bfloat16


def settings(*mixers: AttentionConfig) -> tuple[Any, Any, Placement]:
    layers = [SimpleNamespace(mixers=(mixer,)) for mixer in mixers or (USUAL,)]
    placement = Placement(engine_mesh(np.array([jax.devices()[:1]]), (2,)))
    return Steps(), SimpleNamespace(layers=layers), placement


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    before = jax.config.jax_compilation_cache_dir  # pyrefly: ignore[missing-attribute]
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", before)


def raises(_: Trial) -> str | None:
    raise RuntimeError("ptxas died")


@pytest.mark.parametrize(
    ("compare", "kept", "said"),
    [
        (lambda _: None, "fa4", ""),
        (lambda _: "outputs differ by 0.3", None, "outputs differ by 0.3"),
        (raises, None, "RuntimeError: ptxas died"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_kernels_stay_where_they_agree(
    compare: Any, kept: str | None, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    steps = with_right_kernels(*settings(), compare=compare)
    assert steps == replace(Steps(), shapes=Shapes(prompts=kept))
    assert said in caplog.text
    assert bool(caplog.messages) == bool(said)
    assert not said or ("Prompts run on triton" in caplog.text and "8 heads of 64" in caplog.text)


def test_what_agreed_is_not_compared_at_the_next_start(cache: Path) -> None:
    seen: list[Trial] = []
    for _ in range(2):
        with_right_kernels(*settings(USUAL, USUAL), compare=lambda one: seen.append(one))
    assert seen == [BASE]
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("cache")
def test_another_version_is_compared_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with_right_kernels(*settings(), compare=lambda _: None)
    monkeypatch.setattr(jengine, "__version__", "of tomorrow")
    assert with_right_kernels(*settings(), compare=raises).shapes.prompts is None


def test_what_failed_is_compared_again(cache: Path) -> None:
    for _ in range(2):
        assert with_right_kernels(*settings(), compare=raises).shapes.prompts is None
    assert with_right_kernels(*settings(), compare=lambda _: None).shapes.prompts == "fa4"
    assert len(list(cache.iterdir())) == 1


def test_each_geometry_that_the_kernels_serve_is_tried_once() -> None:
    windowed = replace(USUAL, window=100, sinks=True, scale=0.5)
    capped, wide = replace(USUAL, soft_cap=30.0), replace(USUAL, head_dim=256)
    steps, config, placement = settings(USUAL, windowed, capped, wide, USUAL)
    found = set(trials(steps, mixers_of(config, None), placement))
    assert found == {BASE, BASE._replace(window=100, has_sinks=True, scale=0.5)}


@pytest.mark.usefixtures("cache")
def test_layers_that_draft_are_compared_as_well() -> None:
    """Draft heads have attention of their own, in the same steps."""
    sizes: Any = SimpleNamespace(hidden_size=64, norm_eps=1e-6, initializer_range=0.02)

    class Drafter(nnx.Module):
        def __init__(self) -> None:
            own = replace(USUAL, num_heads=16, window=100)
            self.mixer = Attention(Factory(sizes, "bfloat16", None), own, 0)

    seen: list[Trial] = []
    with_right_kernels(*settings(), Drafter(), compare=seen.append)
    assert set(seen) == {BASE, BASE._replace(heads=16, window=100)}


def test_without_such_kernels_nothing_is_compared() -> None:
    steps, *rest = settings()
    steps = replace(steps, shapes=Shapes(prompts=None))
    assert with_right_kernels(steps, *rest, compare=raises) is steps


def test_an_engine_compares_before_its_steps_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(steps: Any, *_: Any) -> Any:
        raise LookupError(steps.shapes.prompts)

    monkeypatch.setattr(device_side, "with_right_kernels", told)
    with pytest.raises(LookupError, match="None"):
        jengine.LLM("demo", skip_tokenizer_init=True, show_progress=False)


@pytest.mark.parametrize(
    "trial",
    [BASE._replace(heads=7, kv_heads=1, window=100, has_sinks=True, scale=0.3),
     BASE._replace(dtype="float16", block_size=16)],
)  # fmt: skip
def test_the_comparison_passes_other_sums_and_finds_another_scale(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(**changed: Any) -> str | None:
        """With XLA in the kernel's place."""

        def run(*arrays: Any, **options: Any) -> Any:
            return prefill_attention_xla(*arrays, **{**options, **changed})

        monkeypatch.setitem(trial_module.IMPLEMENTATIONS, "fa4", run)
        return difference(trial)

    assert found(dtype=np.dtype(np.float32)) is None
    assert "outputs differ" in str(found(scale=0.2))


@pytest.mark.parametrize(
    ("outputs", "lse", "said"),
    [
        (0.019, 0.019, None),
        (0.3, 0.3, "outputs differ by 0.3 of"),
        (float("nan"), 0.0, "outputs differ by nan of"),
        (0.0, 0.1, "log-sum-exps differ by 0.1 of"),
    ],
)
def test_a_difference_is_one_beyond_rounding(outputs: float, lse: float, said: str | None) -> None:
    found = first_difference({"outputs": outputs, "log-sum-exps": lse}, 2e-2)
    assert (found is None) if said is None else str(found).startswith(said)


def test_errors_are_relative_to_a_tokens_largest_number() -> None:
    expected = np.full((3, 2, 4), 2.0)
    found = expected.copy()
    found[1, 0, 2] = 2.5
    assert largest_error(found, expected) == 0.25
    found[2] = np.nan
    assert np.isnan(largest_error(found, expected))


def test_kernels_without_their_packages_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    steps = with_right_kernels(*settings())
    assert steps.shapes.prompts is None
    assert "not installed" in caplog.text
