"""Recurrent layers answer the same with heads or channels on several devices, and in stages."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jengine import SamplingParams
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.layers.delta_rule import DeltaRule
from jengine.layers.mamba2 import StateSpace
from jengine.layers.recurrent import NOWHERE, StateView
from jengine.layers.state_scan import scan_states
from jengine.runner.step.recurrent import kernel_decoder
from jengine.scheduler.draft_sources import HostDrafts
from jengine.scheduler.drafting import Drafting
from sharding.mesh import engine_mesh
from sharding.placement import Placement
from tests.api.draft_heads import write_heads
from tests.api.engines import answers, rebuilt, tiny_engine
from tests.api.test_speculation import AnswerProposer, drafts_of
from tests.marks import slow
from tests.models.tiny_models import write_tiny_native
from tests.pallas_kernels.implementations import TRITON
from tests.sharding.eight_devices.same_answers import PROMPTS

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
SPLITS = [(2, 1), (4, 1), (1, 2), (2, 2)]  # devices that share each layer, stages


@pytest.mark.parametrize(
    ("family", "splits"),
    [
        ("bamba", SPLITS[1:2]),
        *(
            pytest.param(family, SPLITS, marks=pytest.mark.slow)
            for family in ("lfm2", "bamba", "qwen3_next", "falcon_h1")
        ),
    ],
)
def test_same_tokens_on_several_devices(
    family: str, splits: list[tuple[int, int]], tmp_path: Path
) -> None:
    folder = write_tiny_native(tmp_path, family, vocab_size=128, max_position_embeddings=1024)
    settings = {"mamba_block_size": 32, "max_logprobs": 2}
    with tiny_engine(folder, **settings) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
    for tensor, stages in splits:
        sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
        with tiny_engine(folder, **settings, **sizes) as llm:
            assert answers(llm.generate(PROMPTS, PARAMS)) == expected, sizes
            assert answers(llm.generate(PROMPTS, PARAMS)) == expected, sizes
            assert llm.stats().prefix_hits > 0
            with rebuilt(llm, num_blocks=15) as small:
                assert answers(small.generate(PROMPTS, PARAMS)) == expected, sizes


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2", "bamba", "qwen3_next"])
def test_drafts_give_the_same_tokens_on_several_devices(family: str, tmp_path: Path) -> None:
    folder = write_tiny_native(tmp_path, family, vocab_size=128, max_position_embeddings=1024)
    method = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    sizes = {"decode_rows": [32]}
    settings = {"mamba_block_size": 32, "compilation_config": sizes, "speculative_config": method}
    with tiny_engine(folder, **settings, tensor_parallel_size=2) as llm:
        with rebuilt(llm, speculative=None) as plain:
            expected = answers(plain.generate(PROMPTS, PARAMS))
        texts = [[*prompt, *found[0]] for prompt, found in zip(PROMPTS, expected, strict=True)]

        def drafting(cache: CacheCoordinator) -> Drafting:
            source = HostDrafts(AnswerProposer(texts, 3))
            return Drafting(source, cache, most=3, most_rows=32, adaptive=False)

        with rebuilt(llm, decode_length=drafting) as own_engine:
            assert answers(own_engine.generate(PROMPTS, PARAMS)) == expected
            assert 0 < drafts_of(own_engine).accepted < drafts_of(own_engine).drafted


@pytest.mark.slow
@pytest.mark.parametrize(("family", "method"), [("lfm2", "suffix"), ("bamba", "eagle3")])
def test_drafts_give_the_same_tokens_in_two_replicas(
    family: str, method: str, tmp_path: Path
) -> None:
    sizes = {"vocab_size": 128, "max_position_embeddings": 1024}
    folder = write_tiny_native(tmp_path / "model", family, **sizes)
    settings = {"mamba_block_size": 32, "compilation_config": {"decode_rows": [32]}}
    with tiny_engine(folder, **settings) as llm:
        expected = answers(llm.generate(PROMPTS, PARAMS))
    drafts = {"method": method, "num_speculative_tokens": 2, "adaptive": False}
    if method == "eagle3":
        (tmp_path / "heads").mkdir()
        drafts["model"] = str(write_heads(tmp_path / "heads", method, folder))
    with tiny_engine(folder, **settings, speculative_config=drafts, data_parallel_size=2) as llm:
        for _ in range(2):  # the second time from the prefix cache, and with past outputs
            assert answers(llm.generate(PROMPTS, PARAMS)) == expected
        stats = llm.stats()
        assert stats.drafts.drafted > 0 and stats.prefix_hits > 0
        assert all(one.drafts.drafted > 0 for one in stats.replicas)


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kind", ["state space", *slow("delta")])
def test_kernels_have_the_heads_of_their_device(kind: str, backend: str) -> None:
    """Decodes beside a prompt, in Triton's interpreter: what XLA makes of all heads."""
    devices = np.asarray(jax.devices()[:2]).reshape(1, 2)
    placement = Placement(engine_mesh(devices, (2,)))
    rng, of = np.random.default_rng(1), ("heads", None, None)

    def numbers(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape), jnp.float32)

    rule: DeltaRule | StateSpace
    if kind == "delta":
        states, of = numbers(2, 6, 4, 2, 8, 6), (*of, None)
        rule = DeltaRule(numbers(4, 2), numbers(4, 2), 8)
        tokens = {"qkv": numbers(11, 4, 28), "dt": numbers(11, 4, 2), "beta": numbers(11, 4, 2)}
    else:
        states, rule = numbers(2, 6, 4, 6, 8), StateSpace(numbers(4), numbers(4), (0.0, 1.0))
        tokens = {"x": numbers(11, 4, 6), "keys": numbers(11, 2, 2, 8), "dt": numbers(11, 4)}
    # In place, from a snapshot, and padding; a chunk of two tiles of 4.
    view = StateView(
        jnp.array([2, 3, 0, 5, 5]), jnp.array([2, 1, NOWHERE, NOWHERE, 5]),
        jnp.array([False, False, True, False, False]), jnp.array([True, False]),
        jnp.array([4, 2]), 3, 4,
    )  # fmt: skip
    expected = jax.jit(lambda x: scan_states(rule, tokens, x, 1, view))(states)
    by_kernel = view._replace(decoder=kernel_decoder(backend, placement))
    placed = jax.device_put(states, placement.sharding((None, None, *of), states.shape))
    found = jax.jit(lambda x: scan_states(rule, tokens, x, 1, by_kernel))(placed)
    assert found[1].sharding.shard_shape(states.shape)[2] == 2
    real = np.array([0, 1, *range(3, 9)])
    np.testing.assert_allclose(found[0][real], expected[0][real], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(found[1], expected[1], rtol=1e-5, atol=1e-5)
