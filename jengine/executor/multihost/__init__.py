"""One engine over several processes (multi-host SPMD): one process plans, all run the same steps.

In: plans, and digests of what must be equal in all processes. Out: the same steps everywhere, or an
error that names the process at fault. Must not know requests' texts, the scheduler, or how a step
is compiled.

The first process of the mesh leads: its `LeadingExecutor` broadcasts each plan, read and call, and
the `FollowingExecutor` of every other process repeats them. If a process is lost, all end with its
name. Where only the first has requests (`serve --nnodes`, workers on Ray), it has an ordinary
`EngineCore`. Where the user's program runs in every process, each is given the same requests and
parameters: `LeadingCore` and `FollowingCore` compare their digests first, and all return the
leader's tokens.
"""
