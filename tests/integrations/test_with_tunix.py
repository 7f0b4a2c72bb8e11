"""The rollout engine against the published google-tunix: its classes, models and a whole trainer.

Skipped where Tunix is not installed: it brings a hundred packages and is no dependency of tests.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jengine.models.parameter import named_parameters
from jengine.text.tokenizer import load_tokenizer
from jengine.weights.abstract import with_values
from jengine.weights.resolve import resolve_model
from tests.integrations import fake_tunix
from tests.models.tiny_models import write_tiny_native

base_rollout = pytest.importorskip(
    fake_tunix.MODULE, reason="google-tunix is not installed", exc_type=ImportError
)

from jengine.integrations.tunix import JengineRollout  # noqa: E402
from jengine.integrations.tunix_models import dense_decoder  # noqa: E402

THETA = 1_000_000.0  # tunix's Qwen 3 has no other
SIZES: dict[str, Any] = {
    "num_layers": 2,
    "embed_dim": 32,
    "hidden_dim": 48,
    "num_heads": 4,
    "head_dim": 16,
    "num_kv_heads": 2,
    "rope_theta": int(THETA),
    "norm_eps": 1e-6,
}
SMALL = {"decode_rows": [4], "prefill_tokens": [64]}
PROMPTS = ["What is 2 + 3?", "Once upon a time", "What is 2 + 3?"]


@pytest.fixture(scope="module", autouse=True)
def _as_tunix_expects() -> Iterator[None]:
    before = jax.config.jax_numpy_rank_promotion
    jax.config.update("jax_numpy_rank_promotion", "allow")  # in all threads
    yield
    jax.config.update("jax_numpy_rank_promotion", before)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(resolve_model("demo")).hf


def tunix_model(family: str, vocab: int, tied: bool, seed: int = 0) -> nnx.Module:
    """A random model of tunix's own code; norms, biases and MLPs random as well."""
    module = pytest.importorskip(f"tunix.models.{family}.model")
    given = {**SIZES, "vocab_size": vocab}
    name = "use_tied_embedding" if family != "llama3" else "weight_tying"
    config = module.ModelConfig(**given, **{name: tied})
    model = getattr(module, family.capitalize())(config, rngs=nnx.Rngs(seed))
    keys = iter(jax.random.split(jax.random.key(seed), 1000))
    state = nnx.state(model, nnx.Param)
    noisy = jax.tree.map(lambda x: x + 0.2 * jax.random.normal(next(keys), x.shape, x.dtype), state)
    nnx.update(model, noisy)
    return model


def model_folder(path: Path, family: str, vocab: int, tied: bool) -> Path:
    """The same shape as a Hugging Face folder, with other weights."""
    ours = {"llama3": "llama"}.get(family, family)
    given = {"head_dim": 16, "rms_norm_eps": 1e-6, "tie_word_embeddings": tied}
    if ours == "llama":
        given |= {"rope_theta": THETA}
    return write_tiny_native(path, ours, vocab_size=vocab, **{"rope_theta": THETA, **given})


@pytest.fixture(scope="module")
def rollouts(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Iterator[Any]:
    vanilla = pytest.importorskip("tunix.rl.rollout.vanilla_rollout")
    model = tunix_model("qwen3", len(tokenizer), tied=True)
    folder = model_folder(tmp_path_factory.mktemp("qwen3"), "qwen3", len(tokenizer), tied=True)
    cache = base_rollout.CacheConfig(cache_size=128, num_layers=2, num_kv_heads=2, head_dim=16)
    theirs = vanilla.VanillaRollout(model, tokenizer, cache)
    ours = make(model, tokenizer, folder)
    yield ours, theirs
    ours.llm.shutdown()


def make(actor: Any, tokenizer: Any, folder: Path, **settings: Any) -> JengineRollout:
    return JengineRollout(
        actor,
        tokenizer,
        model=folder,
        mapping=dense_decoder,
        max_model_len=128,
        max_num_seqs=4,
        enforce_eager=True,
        compilation_config=SMALL,
        **settings,
    )


def served_model(rollout: JengineRollout) -> Any:
    """The module with the parameters that the engine uses."""
    engine = rollout.llm.engine
    return with_values(engine.declared, engine.loaded.parameters())


def greedy(**settings: Any) -> Any:
    """Without top_p, with which tunix's own engine divides by the temperature."""
    return base_rollout.RolloutConfig(temperature=0.0, top_p=None, max_prompt_length=32, **settings)


def test_the_fakes_have_the_published_shapes() -> None:
    for fake in (fake_tunix.RolloutOutput, fake_tunix.RolloutConfig):
        published = getattr(base_rollout, fake.__name__)
        real = {field.name: field for field in dataclasses.fields(published)}
        for field in dataclasses.fields(fake):
            assert field.name in real
            assert field.default == real[field.name].default
    real = base_rollout.BaseRollout
    assert real.__abstractmethods__ == fake_tunix.BaseRollout.__abstractmethods__
    for name in real.__abstractmethods__ - {"__init__"}:
        theirs = list(inspect.signature(getattr(real, name)).parameters)
        assert list(inspect.signature(getattr(fake_tunix.BaseRollout, name)).parameters) == theirs
        assert list(inspect.signature(getattr(JengineRollout, name)).parameters)[: len(theirs)] in (
            theirs,
            ["self", "prompts", "rollout_config", "sampling"],
        )
    assert issubclass(JengineRollout, real)


@pytest.mark.parametrize(
    ("family", "tied"),
    [("llama3", False), ("llama3", True), ("qwen2", False), ("qwen2", True), ("qwen3", False)],
)
def test_mapped_parameters_give_the_same_logits(
    tmp_path: Path, tokenizer: Any, family: str, tied: bool
) -> None:
    model = tunix_model(family, len(tokenizer), tied)
    folder = model_folder(tmp_path, family, len(tokenizer), tied)
    rollout = make(model, tokenizer, folder)
    tokens = jnp.asarray(np.random.default_rng(0).integers(3, 97, (2, 12)), jnp.int32)
    positions = jnp.broadcast_to(jnp.arange(12)[None], tokens.shape)
    mask = jnp.broadcast_to(jnp.tril(jnp.ones((12, 12), bool))[None], (2, 12, 12))
    theirs, _ = model(tokens, positions, None, mask)
    ours = served_model(rollout).score(tokens)
    np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)
    rollout.llm.shutdown()


def test_greedy_answers_and_scores_equal_tunix_own_engine(rollouts: Any) -> None:
    ours, theirs = rollouts
    config = greedy(max_tokens_to_generate=12, return_logprobs=True)
    one, other = ours.generate(PROMPTS, config), theirs.generate(PROMPTS, config)
    np.testing.assert_array_equal(one.left_padded_prompt_tokens, other.left_padded_prompt_tokens)
    for mine, reference, found, wanted in zip(
        one.tokens, other.tokens, one.logprobs, other.logprobs, strict=True
    ):
        np.testing.assert_array_equal(mine, reference)
        np.testing.assert_allclose(found, np.asarray(wanted).ravel(), atol=1e-4)
    completions = np.full((3, 12), ours.pad_id(), np.int32)
    for row, tokens in zip(completions, one.tokens, strict=True):
        row[: len(tokens)] = tokens
    given = jnp.asarray(one.left_padded_prompt_tokens), jnp.asarray(completions)
    mine, reference = (np.asarray(r.get_per_token_logps(*given)) for r in (ours, theirs))
    counted = completions != ours.pad_id()
    np.testing.assert_allclose(mine[counted], reference[counted], atol=1e-4)


def test_new_weights_reach_the_engine(rollouts: Any, tokenizer: Any) -> None:
    ours, theirs = rollouts
    other = tunix_model("qwen3", len(tokenizer), tied=True, seed=1)
    config = greedy(max_tokens_to_generate=8)
    before = ours.generate(PROMPTS, config).tokens
    kept = nnx.state(theirs.model(), nnx.Param)
    ours.update_params(nnx.state(other), (nnx.Param,))
    theirs.update_params(nnx.state(other, nnx.Param))
    after = ours.generate(PROMPTS, config).tokens
    assert [a.tolist() for a in after] != [b.tolist() for b in before]
    for mine, reference in zip(after, theirs.generate(PROMPTS, config).tokens, strict=True):
        np.testing.assert_array_equal(mine, reference)
    for rollout in rollouts:
        rollout.update_params(kept)
    again = ours.generate(PROMPTS, config).tokens
    assert [a.tolist() for a in again] == [b.tolist() for b in before]


def test_a_whole_grpo_run_samples_from_what_it_trains(tmp_path: Path, tokenizer: Any) -> None:
    clusters = pytest.importorskip("tunix.rl.rl_cluster")
    grpo = pytest.importorskip("tunix.rl.grpo.grpo_learner")
    folder = model_folder(tmp_path, "qwen3", len(tokenizer), tied=True)
    actor, reference = (tunix_model("qwen3", len(tokenizer), tied=True) for _ in range(2))
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    engine = partial(
        JengineRollout,
        model=folder,
        mapping=dense_decoder,
        enforce_eager=True,
        compilation_config=SMALL,
        max_num_seqs=4,
    )
    config = clusters.ClusterConfig(
        role_to_mesh=dict.fromkeys(clusters.Role, mesh),
        rollout_engine=engine,
        training_config=clusters.RLTrainingConfig(
            actor_optimizer=optax.sgd(0.5), eval_every_n_steps=100, max_steps=3
        ),
        rollout_config=base_rollout.RolloutConfig(
            max_tokens_to_generate=8, max_prompt_length=16, kv_cache_size=64, return_logprobs=True
        ),
    )
    cluster = clusters.RLCluster(
        actor=actor, reference=reference, tokenizer=tokenizer, cluster_config=config
    )
    rollout = cluster.rollout
    assert isinstance(rollout, JengineRollout)
    before = {
        path: np.asarray(array) for path, array in rollout.llm.engine.loaded.parameters().items()
    }

    def reward(prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        return [float(len(text)) for text in completions]

    learner = grpo.GRPOLearner(
        rl_cluster=cluster,
        reward_fns=reward,
        algo_config=grpo.GRPOConfig(num_generations=2, num_iterations=2),
    )
    batch = {"prompts": np.array(["What is 2 + 3?", "Who are you?"])}
    learner.train([batch] * 3)
    assert rollout.llm.weights_version >= 2
    mapped = dense_decoder(nnx.state(cluster.actor_trainer.model, nnx.Param))
    served = {path: parameter[...] for path, parameter in named_parameters(served_model(rollout))}
    for path, array in mapped.items():
        np.testing.assert_array_equal(served[path], array)
    after = rollout.llm.engine.loaded.parameters()
    moved = [not np.array_equal(array, after[path]) for path, array in before.items()]
    assert all(moved)
    rollout.llm.shutdown()
