"""Maps logical axes of parameters to axes of a device mesh; the only place that names mesh axes.

A leaf package: imports jax and numpy, nothing of jengine.

Mesh axes: `dp` replicas; within one, `pp` pipeline stages; within a stage, `tp` shards layers by KV
head. With more devices than KV heads, `tp_replicas` replicates the heads and shards everything
else. A dimension that does not divide evenly is replicated. XLA inserts the collectives: two
all-reduces per layer, and for sampling only each device's best logits. Attention runs per device on
its own heads.

`dcp` (`decode_context_parallel_size`): devices with the same KV heads divide the tokens of each KV
cache block, so a block holds that many times as many tokens. A kernel sees a shorter sequence, in
prefill and decode alike, and a layer merges partial outputs by log-sum-exp. Sliding-window layers
are replicated.

`pcp` (`prefill_context_parallel_size`): groups of devices, each with all weights and the whole
cache, divide the tokens of a step: decode rows and prompt tiles round-robin, so that each group has
early and late parts of a long prompt. A device runs a smaller bucket; groups all-gather keys and
values (latent entries), and at the end the hidden states needed for logits. Latent attention then
reads the cache for prompts as for decodes, as its GPU kernel always does. A drafter, which is
small, runs all tokens on every device.
"""
