"""An engine core in a separate process, and the clients that reach it over a local socket.

Nothing here imports jax or knows how an engine is built. Used by `AsyncLLM(multiprocess=True)` and
`jengine serve`: the front imports no jax, detokenizes, and exchanges typed msgpack messages over a
socket in a folder of mode 0700. In the core one thread runs steps; others own the socket, encode
outputs and answer questions, so steps never wait for a front. Fronts show the last state the core
reported, so they never wait for a step. The core dies with its parent process; its death fails
every open request at once. A core may have any number of fronts, and a front several cores
(`distributed/process_replicas.py`).
"""
