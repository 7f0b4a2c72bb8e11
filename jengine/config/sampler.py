"""Limits of the sampler's per-row arrays, which limit requests."""

MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1024
MAX_LOGPROB_IDS = 128  # ids of its own that a row may have scored
