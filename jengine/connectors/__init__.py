"""Places for blocks of the KV cache outside of the devices: what is there, and how it is read.

In: content keys and bytes. Out: the same, later or in another engine. Must not know requests'
texts, plans or arrays on devices.

Blocks that leave the device are found by content, wherever they are. With `kv_offloading_size`
every published block is saved to a slot of the host's memory; with a connector its bytes go on from
there, to files that survive restarts. What a waiting request lacks on the device is loaded before
it is admitted:

    scheduler: connector's half ──► Plan.transfers, Plan.forks ──► every worker: connector's half
               says what can be had                                reads and writes in threads

    published  ──save, after the step──►  slot ──written out──► folder, other engines
    prefix hit ◄──load, before a step──── slot ◄──fetch, any number of steps──┘
    last block ──copy, before a step────► last block of a beam that goes on

    scheduler ◄── StepOutput.transfers_done: the fetches that have ended in every worker

A loaded block is published like a computed one, so the request finds an ordinary prefix hit: tables
and kinds of cache know nothing of tiers, and only statistics tell what came from there. Who waits
is `LOADING`; a gate lets those behind pass. `Plan.transfers` says what is copied, by block and
slot, so every process of a mesh agrees and keeps its own shards. Loads and saves are programs in
the queue of steps: a saved block holds what the steps until then wrote, whatever a later one does
with it. In a pipeline a save waits until its plan has left the last stage, and before a load the
plans in the stages run to their ends: they may still write blocks that were freed meanwhile. Blocks
and slots stay pinned until the plan of their copy is committed (`scheduler/tiered_transfers.py`,
`runner/transfers`). The scheduler's half of a connector says what can be had, the worker's half
reads and writes in threads; a fetch that fails is a miss, and the request computes what is missing.
Where the processes of a mesh have pieces of a block, each stores its own under a name that says
which part it is (`runner/transfers/block_shards.py`), so meshes with the same pieces share them;
the scheduler takes a block for stored when all pieces are, and a fetch has ended when it has in
every process (`executor/multihost/executors.py`). Hashes of blocks are the same in every process,
but for what only one knows: functions of taps, updated weights. Folders are named by a digest of
the model's files, the cache and the version. `examples/nixl_connector.py` is a connector over a
library of others, also for meshes of several processes: a worker's half in each, which stores its
piece (`connectors/choice.py`). A preempted request gets its blocks back in this way where copying
them, as measured at the start, takes no longer than computing its tokens, as measured in the latest
steps with prompts (`scheduler/copy_costs.py`).
"""
