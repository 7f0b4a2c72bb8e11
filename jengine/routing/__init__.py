"""Router in front of OpenAI-compatible servers: load balancing, failover, disaggregated prefill.

In: HTTP requests of OpenAI's API. Out: the answer of a server, unchanged. Must not know engines.

Disaggregated prefill: one engine computes a prompt, another decodes. A producer's (`kv_role`)
answer to a request with `kv_transfer_params={"do_remote_decode": true}` tells where its blocks are;
a consumer given these as `kv_transfer_params` fetches them over ZMQ (`connectors/peers.py`; CURVE
keys are derived from a shared secret), by content keys that it computes from the prompt itself, so
tensor parallelism may differ. In a mesh of several processes each has a port, and the producer
tells where each piece of its blocks is: a consumer whose processes need other pieces recomputes the
prompt. A producer that does not answer, or lacks a block, costs the consumer a prefill and nothing
else.

`jengine route` connects the two, and chooses among several of each by load and by recently read
prefixes. Servers join and leave while requests run (`--admin-key`, `/route/servers`): one that
leaves gets no new requests and finishes those that it has (`routing/admin.py`).
"""
