"""Triton kernels for token sampling. In: logits and settings of rows. Out: a token per part."""
