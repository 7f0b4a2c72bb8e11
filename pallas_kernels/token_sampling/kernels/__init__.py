"""Triton kernels for sampling."""
