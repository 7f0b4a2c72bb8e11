"""Tiers of the KV cache beyond the devices: host memory, folders, other engines.

In: content keys and bytes. Out: the same, later or in another engine. Must not know requests'
texts, plans or arrays on devices.

Blocks are found by content in every tier. With `kv_offloading_size` every published block is saved
to a slot in host memory, from where a connector writes it, for example to files that survive
restarts. Blocks that a waiting request lacks on the device are loaded before it is admitted:

    scheduler: connector's half ──► Plan.transfers, Plan.forks ──► every worker: connector's half
               tells what is available                             reads and writes in threads

    published  ──save, after the step──►  slot ──written out──► folder, other engines
    prefix hit ◄──load, before a step──── slot ◄──fetch, any number of steps──┘
    last block ──copy, before a step────► last block of a continued beam

    scheduler ◄── StepOutput.transfers_done: the fetches that have ended in every worker

A loaded block is published like a computed one, so the request has an ordinary prefix hit: block
tables and cache kinds do not know tiers, and only statistics tell them apart. A gate parks requests
that wait for loads, and lets others pass. `Plan.transfers` names blocks and slots, so every process
of a mesh agrees and keeps its own shards.

Loads and saves are programs in the same queue as steps: a saved block holds what the steps before
it wrote, whatever later ones do with it. In a pipeline, a save waits until its plan has left the
last stage, and before a load the plans in the stages are drained: they may still write blocks that
were freed meanwhile. Blocks and slots stay pinned until the plan of their copy is committed
(`scheduler/tiered_transfers.py`, `runner/transfers`).

A connector has two halves: the scheduler's looks blocks up, the worker's reads and writes them in
threads. A failed fetch is a cache miss. In a mesh of several processes each stores its shard of
a block under a name that tells which part it is (`runner/transfers/block_shards.py`), so meshes
with equal shards share them; a block counts as stored when all shards are, and a fetch as ended
when it has in every process (`executor/multihost/executors.py`). Block hashes are equal in every
process, except where they depend on something local (functions of taps, updated weights). Folders
are named by a digest of the model's files, the cache and the version. `examples/nixl_connector.py`
is a connector over another library, also for meshes (`connectors/choice.py`).

A preempted request is swapped in this way if copying its blocks, as measured at start, takes no
longer than recomputing its tokens, as measured in recent prefill steps (`scheduler/copy_costs.py`).
"""
