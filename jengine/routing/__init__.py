"""A router in front of servers: which of them answers a request, and what if it does not.

In: HTTP requests of OpenAI's API. Out: the answer of a server, unchanged. Must not know engines.

One engine may compute prompts and another go on with them. The answer of a producer (`kv_role`) to
a request with `kv_transfer_params={"do_remote_decode": true}` says where its blocks are; the
consumer that is given these as `kv_transfer_params` fetches them over ZMQ (`connectors/peers.py`;
CURVE keys follow from a shared secret) by the content keys that it makes of the prompt itself, so
sizes of tensor parallelism may differ. Of a mesh of several processes each has a port, and a
producer says where each piece of its blocks is (`connectors/peers.py`): a consumer whose
processes need others computes the prompt. A producer that does not answer, or lacks a block, costs
the consumer a prefill and nothing else. `jengine route` (`routing`) puts the two together, and
chooses among several of each by load and by what they have read before. Servers join and leave it
while requests run (`--admin-key`, `/route/servers`): one that leaves gets no more and ends those
that it has (`routing/admin.py`).
"""
