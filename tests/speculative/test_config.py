"""speculative_config: defaults as in vLLM, and errors that name the key."""

from __future__ import annotations

from typing import Any

import pytest

from jengine.errors import ConfigError, UnsupportedFeature
from jengine.speculative.choice import host_proposer
from jengine.speculative.config import speculative_config
from jengine.speculative.ngram import NgramProposer
from jengine.speculative.suffix import SuffixProposer


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, 2, 4),
        ({"prompt_lookup_min": None, "prompt_lookup_max": 3}, 3, 3),
    ],
)
def test_sizes_of_ngrams(given: dict[str, Any], least: int, most: int) -> None:
    keys = {"method": "ngram", "num_speculative_tokens": 3, **given}
    config = speculative_config(keys)
    assert (config.prompt_lookup_min, config.prompt_lookup_max) == (least, most)
    proposer = host_proposer(config)
    assert isinstance(proposer, NgramProposer)
    assert (proposer.least, proposer.most) == (least, most)


@pytest.mark.parametrize(
    "given", [{"model": "ngram"}, {"method": "ngram_gpu"}, {"model": "[ngram]"}]
)
def test_other_names_of_ngram(given: dict[str, Any]) -> None:
    config = speculative_config({**given, "num_speculative_tokens": 3})
    assert config.method == "ngram"


@pytest.mark.parametrize(
    ("given", "method"),
    [
        ({"method": "mtp"}, "mtp"),
        ({"method": "deepseek_mtp"}, "mtp"),
        ({"method": "qwen3_next_mtp"}, "mtp"),
        ({"model": "their/EAGLE3-LLaMA3.1-8B"}, "eagle3"),
        ({"model": "their/EAGLE-LLaMA3-8B"}, "eagle"),
        ({"model": "their/small"}, "draft_model"),
    ],
)
def test_methods_with_a_model(given: dict[str, Any], method: str) -> None:
    config = speculative_config({**given, "num_speculative_tokens": 2})
    assert config.method == method
    assert config.on_device
    assert config.lookahead == 2


def test_suffix_takes_its_depth_as_the_most_drafts() -> None:
    assert speculative_config({"method": "suffix"}).num_speculative_tokens == 24
    keys = {"method": "suffix", "suffix_decoding_max_tree_depth": 9}
    config = speculative_config(keys)
    assert config.num_speculative_tokens == 9
    proposer = host_proposer(config)
    assert isinstance(proposer, SuffixProposer)
    assert proposer.depth == 9
    assert proposer.past is not None
    none = {"method": "suffix", "suffix_decoding_max_cached_requests": 0}
    without = host_proposer(speculative_config(none))
    assert isinstance(without, SuffixProposer)
    assert without.past is None


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"method": "ngram"}, "num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens=0"),
        ({"method": "ngram", "num_speculative_tokens": True}, "num_speculative_tokens=True"),
        ({"method": "ngram", "num_speculative_tokens": "3"}, "num_speculative_tokens='3'"),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 4,
          "prompt_lookup_max": 2}, "prompt_lookup_min=4"),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 0},
         "prompt_lookup_min=0"),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 0}, "tree_depth=0"),
        ({"method": "suffix", "suffix_decoding_max_cached_requests": -1}, "requests=-1"),
        ({"method": "suffix", "suffix_decoding_max_spec_factor": -0.5}, "factor=-0.5"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": 1.5}, "prob=1.5"),
        ({"method": "suffix", "suffix_decoding_min_token_prob": float("nan")}, "prob=nan"),
        ({"method": "ngram", "num_speculative_tokens": 3, "adaptive": 1}, "adaptive=1"),
        ({"method": "ngran", "num_speculative_tokens": 3}, "Did you mean 'ngram'"),
        ({"num_speculative_tokens": 3}, "method=None"),
        ({"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup": 3},
         "Did you mean 'prompt_lookup_m"),
    ],
)  # fmt: skip
def test_errors_name_the_key(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError) as raised:
        speculative_config(given)
    assert named in str(raised.value)


def test_anything_but_a_dict_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected a dict"):
        speculative_config("ngram")  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize(
    "given",
    [
        {"method": "mlp_speculator", "model": "some/head", "num_speculative_tokens": 3},
        {"method": "mimo_mtp", "num_speculative_tokens": 1},
        {"method": "eagle", "model": "a", "num_speculative_tokens": 3, "parallel_drafting": True},
    ],
)
def test_what_is_not_built_is_refused_by_name(given: dict[str, Any]) -> None:
    named = list(given)[-1] if "parallel" in str(given) else "method="
    with pytest.raises(UnsupportedFeature, match=named):
        speculative_config(given)


def test_a_model_alone_is_a_draft_model() -> None:
    config = speculative_config({"model": "a/draft", "num_speculative_tokens": 3})
    assert (config.method, config.model, config.on_device) == ("draft_model", "a/draft", True)
    assert config.lookahead == 3
    host = speculative_config({"model": "ngram", "num_speculative_tokens": 3})
    assert (host.method, host.on_device, host.lookahead) == ("ngram", False, 0)
    with pytest.raises(ConfigError, match="expected the folder"):
        speculative_config({"method": "draft_model", "num_speculative_tokens": 3})
