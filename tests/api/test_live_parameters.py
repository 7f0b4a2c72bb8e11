"""Live parameters: no copy, versions, no compile, no old cache entries, a training loop beside."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from jengine import LLM, SamplingParams
from jengine.errors import ConfigError, RequestError
from jengine.models.decoder import Decoder
from jengine.models.parameter import named_parameters
from jengine.models.registry import model_config
from jengine.weights.dummy import dummy_model
from tests.models.plain_logits import plain_logits
from tests.models.tiny_models import FAMILIES, tiny_settings

SETTINGS = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 128,
    "max_num_seqs": 4,
    "pack_weights": False,  # test_packed_parameters.py is about the other
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [64], "variants": ["scored"]},
}
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPT = [5, 6, 7, 8] * 10


def build(seed: int) -> Decoder:
    """A tiny Qwen3 with weights of its own."""
    hf = {"architectures": [FAMILIES["qwen3"]], **tiny_settings("qwen3")}
    return dummy_model(model_config(hf), seed=seed)


def pointer(array: jax.Array) -> int:
    return array.unsafe_buffer_pointer()


def greedy_by_hand(model: Decoder, prompt: list[int], count: int) -> list[int]:
    """What plain attention over the whole sequence would answer."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(plain_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def models() -> list[Decoder]:
    return [build(seed) for seed in range(2)]


@pytest.fixture
def llm(models: list[Decoder]) -> Iterator[LLM]:
    with LLM(models[0], **SETTINGS) as engine:
        yield engine


def test_a_live_module_is_served_without_a_copy(llm: LLM, models: list[Decoder]) -> None:
    theirs = [pointer(parameter[...]) for _, parameter in named_parameters(models[0])]
    assert theirs == [pointer(leaf) for leaf in llm.engine.loaded.leaves]
    output = llm.generate([PROMPT], GREEDY)[0]
    assert output.outputs[0].token_ids == greedy_by_hand(models[0], PROMPT, 6)
    assert output.weight_version == 0


def test_new_parameters_give_new_answers_and_a_new_version(llm: LLM, models: list[Decoder]) -> None:
    llm.generate([PROMPT], GREEDY)
    assert llm.generate([PROMPT], GREEDY)[0].num_cached_tokens > 0
    assert llm.update_params(models[1]) == llm.weights_version == 1
    output = llm.generate([PROMPT], GREEDY)[0]
    assert output.num_cached_tokens == 0, "blocks of the old weights must not be found"
    assert output.weight_version == 1
    assert output.outputs[0].token_ids == greedy_by_hand(models[1], PROMPT, 6)


def test_states_and_plain_trees_are_taken_as_well(llm: LLM, models: list[Decoder]) -> None:
    wanted = greedy_by_hand(models[1], PROMPT, 6)
    state = nnx.state(models[1], nnx.Param)
    tree = {path: parameter[...] for path, parameter in named_parameters(models[1])}
    for params in (state, nnx.to_pure_dict(state), tree):
        llm.update_params(models[0])
        llm.update_params(params)
        assert llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids == wanted


@pytest.mark.slow
def test_a_hundred_updates_under_traffic_compile_nothing_and_keep_no_memory(
    llm: LLM, models: list[Decoder]
) -> None:
    llm.generate([PROMPT], GREEDY)
    programs = len(llm.ledger.entries)
    stream = llm.stream([PROMPT], SamplingParams(temperature=0, max_tokens=80, ignore_eos=True))
    next(stream)
    llm.update_params(models[1], on_inflight="continue")
    gc.collect()
    alive = len(jax.live_arrays())
    for number in range(99):
        if number % 3 == 0:
            next(stream, None)
        llm.update_params(models[number % 2], on_inflight="continue")
        output = llm.generate([[7, number % 90, 9]], GREEDY)[0]
        assert output.weight_version == llm.weights_version
    list(stream)
    assert llm.weights_version == 100
    assert len(llm.ledger.entries) == programs
    assert len(jax.live_arrays()) <= alive


def test_old_parameters_go_without_the_garbage_collector(llm: LLM, models: list[Decoder]) -> None:
    """It may come late, and a copy of a model's weights is not a small thing to keep till then."""
    llm.update_params(models[0])
    gc.collect()
    alive = len(jax.live_arrays())
    gc.disable()
    try:
        for number in range(1, 5):
            llm.update_params(models[number % 2])
        assert len(jax.live_arrays()) <= alive
    finally:
        gc.enable()


def test_requests_in_flight_finish_or_are_aborted(llm: LLM, models: list[Decoder]) -> None:
    wanted = llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids
    stream = llm.stream([PROMPT], GREEDY)
    next(stream)
    llm.update_params(models[1], on_inflight="finish")
    last = list(stream)[-1]
    assert (last.outputs[0].token_ids, last.weight_version) == (wanted, 0)
    stream = llm.stream([PROMPT], GREEDY)
    next(stream)
    llm.update_params(models[0], on_inflight="abort")
    assert list(stream)[-1].outputs[0].finish_reason == "abort"
    assert llm.stats().running == llm.stats().waiting == 0


def test_what_does_not_fit_is_listed_and_changes_nothing(llm: LLM, models: list[Decoder]) -> None:
    before = llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids
    tree = {path: parameter[...] for path, parameter in named_parameters(models[1])}
    wrong = {**tree, "embed.weight": tree["embed.weight"][:-1], "extra": tree["norm.weight"]}
    del wrong["layers.1.mlp.down.weight"]
    with pytest.raises(ConfigError) as error:
        llm.update_params(wrong)
    text = str(error.value)
    assert "embed.weight: given shape" in text and "extra: not a parameter" in text
    assert "layers.1.mlp.down.weight: missing" in text
    with pytest.raises(ConfigError, match="given float16, expected float32"):
        llm.update_params({**tree, "embed.weight": tree["embed.weight"].astype(jnp.float16)})
    with pytest.raises(ConfigError, match="on_inflight"):
        llm.update_params(models[1], on_inflight="wait")  # type: ignore[arg-type]
    assert llm.weights_version == 0
    assert llm.generate([PROMPT], GREEDY)[0].outputs[0].token_ids == before


def test_donated_parameters_are_noticed_and_the_engine_goes_on(models: list[Decoder]) -> None:
    mine = build(3)
    with LLM(mine, **SETTINGS) as llm:
        llm.generate([PROMPT], GREEDY)
        for _, parameter in named_parameters(mine):
            parameter[...].delete()
        with pytest.raises(ConfigError, match="donated"):
            llm.generate([PROMPT], GREEDY)
        llm.update_params(models[0])
        assert llm.generate([PROMPT], GREEDY)[0].weight_version == 1


@pytest.mark.slow
def test_training_and_sampling_alternate_on_one_copy_of_the_weights() -> None:
    model = build(4)
    optimizer = nnx.Optimizer(model, optax.sgd(0.5), wrt=nnx.Param)

    @nnx.jit
    def train(model: Decoder, optimizer: nnx.Optimizer, tokens: jax.Array) -> jax.Array:
        def loss(model: Decoder) -> jax.Array:
            scores = model.score(tokens[:, :-1])
            picked = optax.softmax_cross_entropy_with_integer_labels(scores, tokens[:, 1:])
            return jnp.mean(picked)

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    wanted = jnp.asarray([[3, 4, 5, 6] * 6])
    with LLM(model, **SETTINGS) as llm:
        seen = []
        for _ in range(4):
            train(model, optimizer, wanted)
            llm.update_params(model)
            theirs = [pointer(parameter[...]) for _, parameter in named_parameters(model)]
            assert theirs == [pointer(leaf) for leaf in llm.engine.loaded.leaves]
            seen.append(float(llm.compute_logprobs(wanted).sum()))
    assert seen[-1] > seen[0], "the sampler must see what was trained"


def test_scores_are_those_of_the_plain_forward_pass(llm: LLM, models: list[Decoder]) -> None:
    generator = np.random.default_rng(0)
    tokens = generator.integers(3, 90, (3, 50)).astype(np.int32)
    lengths = np.array([50, 7, 33])
    scores = llm.compute_logprobs(tokens, lengths, top_k=2)
    for row, length in enumerate(lengths):
        truth = np.asarray(jax.nn.log_softmax(plain_logits(models[0], tokens[row])))
        rows = np.arange(length - 1)
        wanted = truth[rows, tokens[row, 1:length]]
        np.testing.assert_allclose(scores.logprobs[row, 1:length], wanted, atol=1e-4)
        best = np.sort(truth[rows])[:, ::-1][:, :2]
        np.testing.assert_allclose(scores.top_logprobs[row, 1:length], best, atol=1e-4)
        assert not np.asarray(scores.logprobs)[row, length:].any()
    assert float(scores.logprobs[0, 0]) == 0.0


@pytest.mark.slow
def test_arrays_in_and_out_with_a_key(llm: LLM) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    tokens = jnp.asarray([PROMPT[:8]] * 3)
    first = llm.generate_arrays(tokens, key=jax.random.key(1), sampling_params=params)
    again = llm.generate_arrays(tokens, key=jax.random.key(1), sampling_params=params)
    other = llm.generate_arrays(tokens, key=jax.random.key(2), sampling_params=params)
    assert first.tokens.shape == (3, 5) and first.lengths.tolist() == [5, 5, 5]
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)
    assert not np.array_equal(first.tokens[0], first.tokens[1]), "each row draws for itself"
    whole = jnp.concatenate([tokens, first.tokens], axis=1)
    np.testing.assert_allclose(llm.compute_logprobs(whole)[:, 8:], first.logprobs, atol=1e-5)
    with pytest.raises(RequestError, match="lengths"):
        llm.generate_arrays(tokens, lengths=[9, 1, 1], sampling_params=params)


def test_a_live_model_needs_a_tokenizer_or_ids(models: list[Decoder]) -> None:
    with pytest.raises(ConfigError, match="tokenizer"):
        LLM(models[0])
    with pytest.raises(ConfigError, match="a module of another library"):
        LLM(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), skip_tokenizer_init=True)
