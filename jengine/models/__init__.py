"""Model families as flax.nnx modules over one shared decoder body.

`ModelConfig` holds a `LayerConfig(mixer, ffn)` per layer; a layer's cache follows from its mixer. A
model is called with tokens and a `StepContext` (`models/context.py`): positions, `mix(layer,
inputs)` for everything that reads or writes the KV cache, and taps. While the step is traced, the
context threads the cache arrays through the layers; a write from another trace is an error. Scoring
whole sequences is the same call with another context. Attention passes on QKV before norm and
rotation, so that one kernel normalises, rotates and writes.
"""
