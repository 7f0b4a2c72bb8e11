"""The only place that names mesh axes: logical axes of parameters to axes of a device mesh.

A leaf package: jax and numpy only, nothing of jengine.

One mesh. The axis `dp` numbers replicas; within one, `pp` numbers stages of layers. Layers are
sharded over `tp` by their KV heads; with more devices than KV heads, `tp_replicas` holds copies of
the heads and shards everything else. A dimension that does not divide evenly is replicated. With
`decode_context_parallel_size` devices of one head divide the tokens of each block among them
instead (the axis `dcp`; a block is then so many times as long). What a device has of a request is a
shorter sequence to its kernels, in prompts and decodes alike; a layer merges partial results by
their log-sum-exps. Layers with a window keep copies. With `prefill_context_parallel_size` so many
groups of devices, each with all weights and the whole cache, divide the tokens of a step (the axis
`pcp`): decode rows and tiles of prompts in turn, so that each group has early and late parts of a
long prompt. A step of a smaller bucket is what a device sees; groups exchange keys and values (of
latent attention the entries), and at the end the hidden states that logits come from. Latent
attention then reads the cache for prompts as for decodes, as its GPU kernel always does. Attention
runs on each device's own heads; XLA inserts the collectives: two all-reduces per layer, and for
sampling only each device's best logits.
"""
