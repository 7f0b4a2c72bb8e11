"""Chooses the host proposer for a SpeculativeConfig."""

from __future__ import annotations

from jengine.config import SpeculativeConfig
from jengine.speculative.ngram import NgramProposer
from jengine.speculative.past_outputs import PastOutputs
from jengine.speculative.proposer import Proposer
from jengine.speculative.suffix import SuffixProposer


def host_proposer(config: SpeculativeConfig) -> Proposer:
    """Return the proposer of a model-free method ("ngram" or "suffix")."""
    if config.method == "ngram":
        return NgramProposer(config.prompt_lookup_min, config.prompt_lookup_max)
    cached = config.suffix_decoding_max_cached_requests
    return SuffixProposer(
        config.suffix_decoding_max_tree_depth,
        config.suffix_decoding_max_spec_factor,
        config.suffix_decoding_min_token_prob,
        PastOutputs(cached) if cached else None,
    )
