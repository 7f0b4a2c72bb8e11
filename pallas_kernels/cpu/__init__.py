"""C++ kernels for CPUs, called by XLA through jax.ffi and run on XLA's own threads.

`source` holds the kernels, a file per operation; `library` compiles them at first use and
registers them; the other files are the JAX functions. Kernels are batch-invariant: a row's bits do
not depend on the batch.
"""
