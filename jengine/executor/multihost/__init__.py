"""Several processes as one engine: the same program on every host, plans from one of them.

In: plans and what processes must agree on. Out: the same in every process, or an error that names
the process at fault. Must not know requests' texts, the scheduler, or how a step is compiled.

The first process of the mesh leads: its `LeadingExecutor` broadcasts each plan, read and call, and
the `FollowingExecutor` of every other process repeats them. A lost process is named, and all end.
Where the first alone has requests (`serve --nnodes`, workers on Ray), it has an ordinary
`EngineCore`. Where the same program is started in every process, each has requests and parameters:
`LeadingCore` and `FollowingCore` compare their digests before they take effect, and the leader's
tokens are returned by all.
"""
