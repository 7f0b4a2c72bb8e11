"""What a row of the sampler has room for: the limits of requests are those of the step's arrays."""

MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 1024
MAX_LOGPROB_IDS = 128  # ids of its own that a row may have scored
