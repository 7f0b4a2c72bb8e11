"""The rollout engine for Tunix, against the documented shape of its classes; needs no Tunix."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from jengine import LLM
from jengine.errors import ConfigError, RequestError, UnsupportedFeature
from jengine.models.decoder import Decoder
from jengine.models.registry import model_config
from jengine.weights.dummy import dummy_model
from jengine.weights.live import named_arrays
from tests.integrations import fake_tunix
from tests.integrations.fake_tunix import RolloutConfig
from tests.models.plain_logits import plain_logits
from tests.models.tiny_models import FAMILIES, tiny_settings

PAD, BOS, EOS = 0, 1, 2
PROMPTS = ["w5 w6 w7", "w8", "w5 w6 w7", "w9 w10 w11 w12"]
SETTINGS: dict[str, Any] = {
    "enforce_eager": True,
    "max_num_seqs": 4,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [64], "variants": ["scored"]},
}
CONFIG = RolloutConfig(max_tokens_to_generate=8, max_prompt_length=6, kv_cache_size=128)
GREEDY = replace(CONFIG, temperature=0.0, return_logprobs=True)


def word_tokenizer(*, pad: str = "<pad>") -> PreTrainedTokenizerFast:
    """Words w3 to w96, and a BOS before every text."""
    words = {"<pad>": PAD, "<s>": BOS, "</s>": EOS, **{f"w{i}": i for i in range(3, 97)}}
    backend = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    special = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": pad}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **special)


def build(seed: int) -> Decoder:
    hf = {"architectures": [FAMILIES["qwen3"]], **tiny_settings("qwen3")}
    return dummy_model(model_config(hf), seed=seed)


@dataclass
class Setup:
    """The module under test as imported beside the fakes, a model, and an engine for it."""

    tunix: Any
    actor: Decoder
    rollout: Any


@pytest.fixture(scope="module")
def setup() -> Iterator[Setup]:
    with pytest.MonkeyPatch.context() as patch:
        fake_tunix.install(patch)
        tunix = importlib.import_module("jengine.integrations.tunix")
        actor = build(0)
        rollout = tunix.JengineRollout(actor, word_tokenizer(), None, CONFIG, **SETTINGS)
        yield Setup(tunix, actor, rollout)
        rollout.llm.shutdown()
        sys.modules.pop("jengine.integrations.tunix")


@pytest.fixture
def rollout(setup: Setup) -> Iterator[Any]:
    yield setup.rollout
    setup.rollout.update_params(setup.actor)


def logprobs(
    model: Decoder, prompt: list[int], answer: list[int], temperature: float
) -> np.ndarray:
    """What the model says of an answer, by plain attention over the whole sequence."""
    whole = plain_logits(model, [*prompt, *answer]).astype(np.float64)
    scaled = whole[len(prompt) - 1 : -1] / temperature
    scaled -= np.log(np.exp(scaled).sum(-1, keepdims=True))
    return scaled[np.arange(len(answer)), answer]


def tokens(output: Any) -> list[list[int]]:
    return [row.tolist() for row in output.tokens]


def test_the_answers_have_tunix_shape(rollout: Any, setup: Setup) -> None:
    output = rollout.generate(PROMPTS, CONFIG)
    assert isinstance(output, fake_tunix.RolloutOutput)
    assert (output.logits, output.logprobs) == (None, None)
    padded = output.left_padded_prompt_tokens
    assert padded.dtype == np.int32 and padded.shape == (4, CONFIG.max_prompt_length)
    assert padded[0].tolist() == [PAD, PAD, BOS, 5, 6, 7]
    assert padded[1].tolist() == [PAD, PAD, PAD, PAD, BOS, 8]
    for text, row in zip(output.text, output.tokens, strict=True):
        assert row.dtype == np.int32 and 1 <= len(row) <= CONFIG.max_tokens_to_generate
        assert text.split() == [f"w{token}" for token in row if token not in (PAD, BOS, EOS)]
    assert isinstance(rollout, setup.tunix.BaseRollout)
    assert (rollout.pad_id(), rollout.eos_id(), rollout.model()) == (PAD, EOS, None)


def test_the_cache_size_of_the_config_bounds_a_sequence(rollout: Any) -> None:
    assert rollout.llm.max_model_len == CONFIG.kv_cache_size


def test_greedy_answers_are_the_models(rollout: Any, setup: Setup) -> None:
    output = rollout.generate(PROMPTS, replace(GREEDY, eos_tokens=[]))
    for padded, answer, scores in zip(
        output.left_padded_prompt_tokens, tokens(output), output.logprobs, strict=True
    ):
        prompt = padded[padded != PAD].tolist()
        best = plain_logits(setup.actor, [*prompt, *answer])[len(prompt) - 1 : -1].argmax(-1)
        assert answer == best.tolist() and len(answer) == 8
        np.testing.assert_allclose(scores, logprobs(setup.actor, prompt, answer, 1.0), atol=1e-4)


def test_logprobs_are_those_of_what_was_sampled_from(rollout: Any, setup: Setup) -> None:
    config = replace(CONFIG, temperature=1.7, return_logprobs=True, seed=jax.random.key(1))
    output = rollout.generate(PROMPTS[:1], config)
    (answer,) = tokens(output)
    wanted = logprobs(setup.actor, [BOS, 5, 6, 7], answer, 1.7)
    np.testing.assert_allclose(output.logprobs[0], wanted, atol=1e-4)
    raw = logprobs(setup.actor, [BOS, 5, 6, 7], answer, 1.0)
    assert np.abs(wanted - raw).max() > 0.01, "else the test above shows nothing"


def test_a_seed_fixes_the_answers_and_equal_prompts_differ(rollout: Any) -> None:
    def answers(seed: Any) -> list[list[int]]:
        return tokens(rollout.generate(PROMPTS, replace(CONFIG, seed=seed, temperature=1.5)))

    first = answers(jax.random.key(3))
    assert first == answers(jax.random.key(3)) == answers(jax.random.PRNGKey(3)) == answers(3)
    assert first == answers(jnp.asarray(3))
    assert first[0] != first[2], "the same prompt twice is two samples"
    assert first != answers(jax.random.key(4))
    assert answers(None) != answers(None)
    with pytest.raises(RequestError, match="a jax key or an integer"):
        answers("three")


@pytest.mark.slow
def test_top_k_and_top_p_leave_the_best_token(rollout: Any) -> None:
    best = tokens(rollout.generate(PROMPTS, GREEDY))
    hot = replace(CONFIG, temperature=2.0)
    for config in (replace(hot, top_k=1), replace(hot, top_p=1e-6, top_k=-1)):
        assert tokens(rollout.generate(PROMPTS, config)) == best
    assert tokens(rollout.generate(PROMPTS, replace(hot, top_p=None))) != best


def test_the_given_eos_tokens_alone_end_an_answer(rollout: Any) -> None:
    free = tokens(rollout.generate(PROMPTS[:1], replace(GREEDY, eos_tokens=[])))[0]
    end = free.index(free[3]) + 1
    output = rollout.generate(PROMPTS[:1], replace(GREEDY, eos_tokens=[free[3]]))
    assert tokens(output)[0] == free[:end], "with the token that ended it"
    assert len(output.text[0].split()) < end
    assert len(output.logprobs[0]) == end


def test_further_keywords_are_sampling_parameters(rollout: Any) -> None:
    assert len(tokens(rollout.generate(PROMPTS[:1], GREEDY, max_tokens=2))[0]) <= 2
    with pytest.raises(TypeError, match="max_toks"):
        rollout.generate(PROMPTS[:1], GREEDY, max_toks=2)


def test_bad_prompts_are_refused_and_the_engine_goes_on(rollout: Any) -> None:
    for prompts, message in (
        (["w5 w6", "w5 " * 6], "prompt 1 has 7 tokens, max_prompt_length is 6"),
        ([5], "expected a string"),
    ):
        with pytest.raises(RequestError, match=message):
            rollout.generate(prompts, CONFIG)
    with pytest.raises(ValueError, match="temperature"):
        rollout.generate(PROMPTS, replace(CONFIG, temperature=-1.0))
    assert len(rollout.generate(PROMPTS, CONFIG).tokens) == 4


def test_a_bos_written_by_a_chat_template_is_not_doubled(rollout: Any) -> None:
    padded = rollout.generate(["<s> w5"], CONFIG).left_padded_prompt_tokens
    assert padded[0].tolist() == [PAD, PAD, PAD, PAD, BOS, 5]


def test_given_tokens_are_scored(rollout: Any, setup: Setup) -> None:
    prompts = jnp.asarray([[PAD, PAD, BOS, 5, 6], [PAD, BOS, 7, 8, 9]])
    completions = jnp.asarray([[11, 12, EOS, PAD, PAD], [13, 14, 15, 16, 17]])
    scores = np.asarray(rollout.get_per_token_logps(prompts, completions))
    assert scores.dtype == np.float32 and scores.shape == (2, 5)
    wanted = logprobs(setup.actor, [BOS, 5, 6], [11, 12, EOS], 1.0)
    np.testing.assert_allclose(scores[0, :3], wanted, atol=1e-4)
    wanted = logprobs(setup.actor, [BOS, 7, 8, 9], [13, 14, 15, 16, 17], 1.0)
    np.testing.assert_allclose(scores[1], wanted, atol=1e-4)
    masked = rollout.get_per_token_logps(prompts, completions, jnp.asarray([[1, 1, 0, 0, 0]] * 2))
    np.testing.assert_allclose(masked[:, :2], scores[:, :2], atol=1e-6)
    assert not np.asarray(masked)[:, 2:].any()
    with pytest.raises(RequestError, match="only padding"):
        rollout.get_per_token_logps(prompts.at[0].set(PAD), completions)


@pytest.mark.slow
def test_an_end_of_text_that_is_also_padding_is_scored(setup: Setup) -> None:
    tokenizer = word_tokenizer(pad="</s>")
    with LLM(setup.actor, tokenizer=tokenizer, max_model_len=64, **SETTINGS) as llm:
        rollout = setup.tunix.JengineRollout(llm=llm)
        assert rollout.pad_id() == rollout.eos_id() == EOS
        scores = rollout.get_per_token_logps(
            jnp.asarray([[EOS, BOS, 5]]), jnp.asarray([[11, EOS, EOS, EOS]])
        )
        wanted = logprobs(setup.actor, [BOS, 5], [11, EOS], 1.0)
        np.testing.assert_allclose(np.asarray(scores)[0, :2], wanted, atol=1e-4)
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A")
        with pytest.raises(RequestError, match="also the padding"):
            rollout.generate(["</s> w5"], CONFIG)


@pytest.mark.parametrize("form", ["module", "state", "tree", "half"])
def test_new_parameters_are_taken_in_every_form(rollout: Any, setup: Setup, form: str) -> None:
    other = build(1)
    state = nnx.state(other, nnx.Param)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), state)
    given = {"module": other, "state": state, "tree": nnx.to_pure_dict(state), "half": half}
    before = tokens(rollout.generate(PROMPTS, GREEDY))
    version = rollout.llm.weights_version
    assert rollout.update_params(given[form], (nnx.Param,)) is None
    assert rollout.llm.weights_version == version + 1
    served = nnx.merge(nnx.graphdef(other), jax.tree.map(lambda x: x.astype("float32"), half))
    expected = served if form == "half" else other
    output = rollout.generate(PROMPTS, replace(GREEDY, eos_tokens=[]))
    assert tokens(output) != before
    for padded, answer, scores in zip(
        output.left_padded_prompt_tokens, tokens(output), output.logprobs, strict=True
    ):
        wanted = logprobs(expected, padded[padded != PAD].tolist(), answer, 1.0)
        np.testing.assert_allclose(scores, wanted, atol=1e-4)


def test_wrong_parameters_change_nothing(rollout: Any, setup: Setup) -> None:
    before = tokens(rollout.generate(PROMPTS, GREEDY))
    wrong = nnx.to_pure_dict(nnx.state(build(1), nnx.Param))
    wrong["embedding"] = wrong.pop("embed")
    with pytest.raises(ConfigError, match=r"embedding\.weight: not a parameter"):
        rollout.update_params(wrong)
    with pytest.raises(UnsupportedFeature, match="merge"):
        rollout.update_params(nnx.state(build(1)), (nnx.LoRAParam,))
    assert tokens(rollout.generate(PROMPTS, GREEDY)) == before


@pytest.mark.slow
def test_a_given_engine_takes_over_the_actor(setup: Setup) -> None:
    with LLM(setup.actor, tokenizer=word_tokenizer(), max_model_len=64, **SETTINGS) as llm:
        other = build(1)
        rollout = setup.tunix.JengineRollout(other, word_tokenizer(), llm.mesh, CONFIG, llm=llm)
        (answer,) = tokens(rollout.generate(PROMPTS[:1], replace(GREEDY, eos_tokens=[])))
        best = plain_logits(other, [BOS, 5, 6, 7, *answer])[3:-1].argmax(-1)
        assert answer == best.tolist()
        with pytest.raises(ConfigError, match=r"\(97, 2, 2\) and \(97, 2, 0\)"):
            setup.tunix.JengineRollout(other, word_tokenizer(pad="</s>"), llm=llm)
        with pytest.raises(ConfigError, match="the llm is on"):
            elsewhere = SimpleNamespace(devices=np.array([None]))
            setup.tunix.JengineRollout(other, None, elsewhere, llm=llm)


@pytest.mark.slow
def test_a_mapping_turns_the_trainers_parameters_into_ours(setup: Setup) -> None:
    def renamed(params: dict[str, Any]) -> dict[str, Any]:
        return {path.removeprefix("theirs."): array for path, array in params.items()}

    theirs = {f"theirs.{path}": array for path, array in named_arrays(build(1)).items()}
    with LLM(setup.actor, tokenizer=word_tokenizer(), max_model_len=64, **SETTINGS) as llm:
        rollout = setup.tunix.JengineRollout(llm=llm, mapping=renamed)
        rollout.update_params(theirs)
        (answer,) = tokens(rollout.generate(PROMPTS[:1], replace(GREEDY, eos_tokens=[])))
    best = plain_logits(build(1), [BOS, 5, 6, 7, *answer])[3:-1].argmax(-1)
    assert answer == best.tolist()


@pytest.mark.parametrize(
    ("config", "error", "message"),
    [
        ({"rollout_mapping_config": object()}, UnsupportedFeature, "give JengineRollout a mapping"),
        ({"tensor_parallel_size": 64, "kv_cache_size": 64}, ConfigError, "tensor_parallel_size=64"),
        ({"data_parallel_size": 64, "kv_cache_size": 64}, ConfigError, "data_parallel_size=64"),
        ({"expert_parallel_size": 4}, UnsupportedFeature, "expert_parallel_size=4"),
        ({"data_type": jnp.bfloat16}, ConfigError, "dtype="),
        ({"kv_cache_size": 10_000}, ConfigError, "max_model_len"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(
    setup: Setup, config: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        setup.tunix.JengineRollout(
            setup.actor, word_tokenizer(), None, RolloutConfig(**config), **SETTINGS
        )


def test_the_clusters_mesh_is_the_engines(setup: Setup) -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    rollout = setup.tunix.JengineRollout(setup.actor, word_tokenizer(), mesh, CONFIG, **SETTINGS)
    assert list(rollout.llm.mesh.devices.flat) == list(mesh.devices.flat)
    rollout.llm.shutdown()
    with pytest.raises(ConfigError, match=r"expected a jax\.sharding\.Mesh"):
        setup.tunix.JengineRollout(setup.actor, word_tokenizer(), "mesh", CONFIG, **SETTINGS)


def test_engines_are_asked_for_in_one_way(setup: Setup) -> None:
    with pytest.raises(ConfigError, match="give an llm, a model folder"):
        setup.tunix.JengineRollout(tokenizer=word_tokenizer())
    with pytest.raises(ConfigError, match="an llm is complete"):
        setup.tunix.JengineRollout(llm=setup.rollout.llm, max_num_seqs=2)


def test_without_tunix_the_import_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tunix", None)
    for name in [name for name in sys.modules if name.startswith("tunix.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "jengine.integrations.tunix", raising=False)
    with pytest.raises(ModuleNotFoundError, match="pip install google-tunix"):
        importlib.import_module("jengine.integrations.tunix")
