"""FlashAttention-4's paged kernels for prompts, from the optional packages of `jengine[fa4]`.

The kernels are written in CuTe DSL (`fa4-jax`, MIT and BSD-3) and compiled by `nvidia-cutlass-dsl`,
which is proprietary and free of charge; nothing of either is copied here. There is no interpreter
for them: without a GPU only their code, not their numbers, can be checked.

- `rules.py`   what they cannot do, which goes to Triton
- `kernel.py`  compiling for one geometry; needs both packages, and no GPU
- `trial.py`   one comparison with XLA, which an engine makes at its first start on a device
- `absent.py`  importing their package without torch
- `call.py`    the JAX primitive, which becomes a call that XLA puts into a CUDA graph
"""
