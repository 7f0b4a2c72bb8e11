"""Model families as flax.nnx modules over one shared decoder body.

Layers are data. `ModelConfig` holds a `LayerConfig(mixer, ffn)` per layer; a layer's cache follows
from its mixer. A model is called with tokens and a `StepContext` (`models/context.py`): positions,
`mix(layer, inputs)` for whatever reads and writes the KV cache, and taps. While the step is traced,
the context carries the cache arrays from layer to layer; a write from another trace is an error.
Scoring whole sequences is the same call with another context. Attention passes on its matmul's
output before norm and rotation, so that one kernel normalises, rotates and writes.
"""
