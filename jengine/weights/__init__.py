"""Model folders: reading, checking and writing weights, configs and generation settings.

A parameter is copied once: files are memory-mapped, and a tensor that is transposed, fused or cast
is written to memory that JAX adopts on the CPU. Never zero-copy from the mmap: most tensors are
transposed or unaligned, and a later truncation of the file would crash the process.
"""
