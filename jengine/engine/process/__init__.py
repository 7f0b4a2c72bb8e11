"""An engine core in a process of its own, and the clients that reach it over a local socket.

Any number of fronts may use one core. Nothing here imports jax or knows how an engine is built.

A core may have a process of its own (`engine/process`; `AsyncLLM(multiprocess=True)` and `jengine
serve`). The front then imports no jax: it takes requests, makes text, and sends typed msgpack
messages over a local socket in a folder of mode 0700. In the core one thread runs steps, others own
the socket, encode outputs and answer questions, so no step waits for a front. What a front shows of
the core is what the core said last, so no front waits for a step. The core is killed with the
process that started it; its death fails every open request at once. Any number of fronts may use
one core, and one front several cores (`distributed/process_replicas.py`).
"""
