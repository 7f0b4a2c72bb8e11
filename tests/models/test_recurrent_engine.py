"""Recurrent layers in the engine: states of rows and snapshots give what whole sequences give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jengine import LLM, SamplingParams
from jengine.assembly.sizes.step_sizes import refuse_drafts
from jengine.config import ModelConfig, ScheduleConfig, SpeculativeConfig
from jengine.errors import ConfigError, UnsupportedFeature
from jengine.kvcache.coordinator import CacheCoordinator
from jengine.models.registry import model_config
from jengine.runner.step import recurrent
from jengine.scheduler.draft_sources import HostDrafts
from jengine.scheduler.drafting import Drafting
from jengine.weights.dummy import dummy_model
from tests.api.engines import answers, rebuilt
from tests.api.test_deterministic import facts
from tests.api.test_speculation import AnswerProposer, drafts_of
from tests.marks import slow
from tests.models.test_latent_engine import sure_tokens
from tests.models.tiny_models import FAMILIES, tiny_settings
from tests.pallas_kernels.implementations import TRITON

SETTINGS: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": 256,
    "max_num_seqs": 4,
    "mamba_block_size": 32,
    "compilation_config": {"decode_rows": [4], "prefill_tokens": [64], "variants": ["sampled"]},
}
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def tiny(family: str, **overrides: Any) -> ModelConfig:
    settings = tiny_settings(family, **overrides)
    return model_config({**settings, "architectures": [FAMILIES[family]]})


def prompts() -> list[list[int]]:
    """Shorter and longer than a tile of 32 and a chunk of 64, and with the same beginning."""
    rng = np.random.default_rng(3)
    long = rng.integers(3, 97, 150).tolist()
    own = [rng.integers(3, 97, length).tolist() for length in (1, 5, 33, 64, 70)]
    return [*own, long, [*long[:100], 7, 8, 9], long]


@pytest.mark.parametrize("family", ["lfm2", *slow("bamba", "qwen3_next", "falcon_h1")])
def test_states_are_those_of_whole_sequences(family: str) -> None:
    """Rows come and go, prompts run in chunks beside decodes, begin alike, and push each other
    out."""
    model = dummy_model(tiny(family), seed=2)
    with LLM(model, **SETTINGS) as llm:
        outputs = llm.generate(prompts(), GREEDY)
        answered = [output.outputs[0].token_ids for output in outputs]
        sure = [sure_tokens(model, *pair) for pair in zip(prompts(), answered, strict=True)]
        assert sum(sure) > 0.9 * 12 * len(sure), "near ties should be rare"
        assert llm.stats().prefix_hits >= 128 + 96
        # Decodes leave snapshots too: of 70 + 12 tokens 64 at the prompt's end, of 150 + 12 160.
        before = llm.stats().prefix_hits
        again = [*prompts()[5], *answered[5], 5]
        llm.generate([again], GREEDY)
        assert llm.stats().prefix_hits - before == 160
        several = SamplingParams(temperature=0.8, seed=7, max_tokens=12, ignore_eos=True, n=3)
        drawn = llm.generate(prompts()[4:6], several)
        with rebuilt(llm, prefix_caching=False) as without:
            assert answers(without.generate(prompts()[4:6], several)) == answers(drawn)
            assert without.stats().prefix_hits == 0
        with rebuilt(llm, num_blocks=12) as small:
            assert answers(small.generate(prompts(), GREEDY)) == answers(outputs)
            assert small.stats().preemptions > 0


DRAFTS = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_min": 1}


@pytest.mark.slow
@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize(
    ("family", "rows", "options"),
    [
        ("qwen3_5", 2, {}),
        ("qwen3_5", 6, {"speculative_config": DRAFTS}),
        ("qwen3_5", None, {"deterministic": True, "max_num_batched_tokens": 16}),
        ("bamba", 2, {}),
        ("falcon_h1", 6, {"speculative_config": DRAFTS}),
    ],
)
def test_kernels_update_states_in_place(
    family: str,
    rows: int | None,
    options: dict[str, Any],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Triton's interpreter: the tokens of XLA's path, for rows that come and go beside prompts
    and go on from snapshots, with drafts, and where one row runs after the other."""
    stepped: list[str] = []
    for name in ("delta_step", "state_space_step"):
        step = getattr(recurrent, name)
        monkeypatch.setattr(recurrent, name, recorded(step, name, stepped))
    model = dummy_model(tiny(family), seed=2)
    sizes = {"decode_rows": [rows], "prefill_tokens": [32], "variants": ["greedy"]}
    settings = {
        **SETTINGS, "max_model_len": 48, "max_num_seqs": 2, "max_num_batched_tokens": 32,
        "mamba_block_size": 16, "compilation_config": sizes if rows else {}, **options,
    }  # fmt: skip
    few = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    asked = [prompts()[1], prompts()[2], [*prompts()[2], 7, 8]]
    found = []
    for used in ("xla", backend):
        assert not stepped
        with LLM(model, **settings, attention_backend=used) as llm:
            found.append(answers(llm.generate(asked, few)))
            assert llm.stats().prefix_hits > 0
    assert found[0] == found[1]
    assert set(stepped) == {"delta_step" if "qwen" in family else "state_space_step"}


def recorded(step: Callable[..., Any], name: str, stepped: list[str]) -> Callable[..., Any]:
    """The same function, which notes that it was called."""

    def call(*arrays: Any, **options: Any) -> Any:
        stepped.append(name)
        return step(*arrays, **options)

    return call


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2", "bamba", "qwen3_next", "falcon_h1"])
def test_deterministic_mode_gives_the_same_bits(family: str) -> None:
    """In any batch and order, as decodes, in prompts, and after prefix hits: all tokens run in one
    shape, each by the same recurrent update."""
    model = dummy_model(tiny(family, dtype="bfloat16"), seed=2)
    scored = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
    sizes = {name: SETTINGS[name] for name in SETTINGS if name != "compilation_config"}
    with LLM(model, **sizes, deterministic=True) as llm:
        assert llm.engine.schedule.one_segment
        first = [facts(output) for output in llm.generate(prompts(), scored)]
        before = llm.stats().prefix_hits
        turned = llm.generate(prompts()[::-1], scored)[::-1]
        assert [facts(output) for output in turned] == first
        assert llm.stats().prefix_hits > before
        with rebuilt(llm, prefix_caching=False) as without:
            alone = [without.generate([prompt], scored)[0] for prompt in prompts()]
            assert [facts(output) for output in alone] == first
            tokens = first[5][0]
            whole = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
            [known] = without.generate([[*prompts()[5], *tokens]], whole)
            assert known.prompt_logprobs is not None
            found = zip(tokens, known.prompt_logprobs[len(prompts()[5]) :], strict=True)
            bits = np.asarray([table[token].logprob for token, table in found], np.float32)
            assert bits.tobytes() == first[5][1]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2", "bamba", "qwen3_next", "falcon_h1"])
def test_drafts_give_the_tokens_of_plain_decoding(family: str) -> None:
    """States are those after the drafts that count, whatever is rejected; snapshots that decodes
    with drafts leave, preemption and fewer blocks change nothing."""
    model = dummy_model(tiny(family), seed=2)
    most = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1}
    sizes = {"decode_rows": [16], "prefill_tokens": [64], "variants": ["scored"]}
    settings = {**SETTINGS, "mamba_block_size": 16, "compilation_config": sizes}
    wanted = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    drawn = SamplingParams(temperature=0.9, seed=4, max_tokens=24, ignore_eos=True, n=2)
    with LLM(model, **settings, speculative_config=most) as llm:
        with rebuilt(llm, speculative=None) as plain:
            outputs = plain.generate(prompts(), wanted)
            expected, sampled = answers(outputs), answers(plain.generate(prompts()[2:6], drawn))
            texts = [[*one.prompt_token_ids, *one.outputs[0].token_ids] for one in outputs]
            followed = answers(plain.generate(texts, wanted))
        assert answers(llm.generate(prompts(), wanted)) == expected  # by n-grams
        assert answers(llm.generate(prompts()[2:6], drawn)) == sampled
        own = sorted(set(map(tuple, texts)))

        def drafting(cache: CacheCoordinator) -> Drafting:
            source = HostDrafts(AnswerProposer([list(text) for text in own], wrong))
            return Drafting(source, cache, most=3, most_rows=16, adaptive=False)

        for wrong, blocks in ((1, None), (3, None), (1000, None), (3, 16)):
            with rebuilt(llm, decode_length=drafting, num_blocks=blocks) as own_engine:
                assert answers(own_engine.generate(prompts(), wanted)) == expected
                stats, counts = own_engine.stats(), drafts_of(own_engine)
                assert (wrong == 1 and not counts.accepted) or counts.accepted > 0
                assert counts.accepted == counts.drafted or wrong < 1000
                assert stats.preemptions > 0 or blocks is None
                # Snapshots that decodes with drafts have left, and what goes on from them.
                [alone] = answers(own_engine.generate(prompts()[4:5], wanted))
                before = own_engine.stats().prefix_hits
                assert answers(own_engine.generate([texts[4]], wanted)) == [followed[4]]
                assert own_engine.stats().prefix_hits - before == (len(texts[4]) - 1) // 16 * 16
                assert [alone] == [expected[4]]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["lfm2", "bamba", "qwen3_next"])
def test_suffix_drafts_give_the_tokens_of_plain_decoding(family: str) -> None:
    """Answers of the first time are past outputs the second time, and most drafts are right."""
    model = dummy_model(tiny(family), seed=2)
    suffix = {"method": "suffix", "num_speculative_tokens": 3, "adaptive": False}
    sizes = {"decode_rows": [16], "prefill_tokens": [64], "variants": ["scored"]}
    settings = {**SETTINGS, "compilation_config": sizes, "speculative_config": suffix}
    drawn = SamplingParams(temperature=0.9, seed=4, max_tokens=12, ignore_eos=True, n=2)
    with LLM(model, **settings) as llm:
        with rebuilt(llm, speculative=None) as plain:
            expected = answers(plain.generate(prompts(), GREEDY))
            sampled = answers(plain.generate(prompts()[2:6], drawn))
        for _ in range(2):
            before = llm.stats().drafts
            assert answers(llm.generate(prompts(), GREEDY)) == expected
            assert answers(llm.generate(prompts()[2:6], drawn)) == sampled
        last = llm.stats().drafts
        assert last.accepted - before.accepted > (last.drafted - before.drafted) // 2 > 0
        with rebuilt(llm, num_blocks=16) as small:
            assert answers(small.generate(prompts(), GREEDY)) == expected
            assert small.stats().preemptions > 0


def test_other_drafts_and_odd_snapshots_are_refused_by_name() -> None:
    model = dummy_model(tiny("lfm2"), seed=1)
    with pytest.raises(ConfigError, match="mamba_block_size=24: expected a multiple of block_size"):
        LLM(model, **{**SETTINGS, "mamba_block_size": 24})
    [own, *_] = (layer.mixer.cache for layer in model.config.layers)
    speculative = SpeculativeConfig("eagle", 2, model="eagle")
    schedule = ScheduleConfig(4, 64, 256, speculative=speculative)
    with pytest.raises(UnsupportedFeature, match="a draft model with recurrent layers"):
        refuse_drafts(schedule, 1, (own,))
