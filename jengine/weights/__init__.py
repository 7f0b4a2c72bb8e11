"""Model folders: reading, checking and writing weights and the settings beside them.

A parameter is copied once. Files are memory-mapped, and a tensor that is transposed, fused or cast
is written to memory that JAX takes over on the CPU. Arrays never alias the mapped file: most
tensors are transposed or unaligned, and a file truncated later would end the process.
"""
