"""Router in front of OpenAI-compatible servers: load balancing, failover, disaggregated prefill.

In: HTTP requests of OpenAI's API. Out: a server's response, unchanged. Must not know engines.

Disaggregated prefill: one engine computes a prompt, another decodes. The response of a producer
(`kv_role`) to a request with `kv_transfer_params={"do_remote_decode": true}` gives the location of
its blocks. A consumer given these as `kv_transfer_params` fetches the blocks over ZMQ
(`connectors/peers.py`; CURVE keys are derived from a shared secret), by content keys that it
computes from the prompt itself, so tensor parallelism may differ. In a mesh of several processes
each has a port and serves its shard of a block: a consumer whose processes need other shards
recomputes the prompt. If a producer does not answer or lacks a block, the consumer just computes
the prefill.

`jengine route` connects producers and consumers, and chooses among them by load and recently read
prefixes. Servers are added and removed at run time (`--admin-key`, `/route/servers`): a removed one
finishes its requests (`routing/admin.py`).
"""
