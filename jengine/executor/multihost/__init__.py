"""Several processes as one engine: the same program on every host, plans from one of them.

In: plans and what processes must agree on. Out: the same in every process, or an error that names
the process at fault. Must not know requests' texts, the scheduler, or how a step is compiled.

Several processes are one engine. The same program is started in every process. The first process of
the mesh leads: its `LeadingCore` schedules and broadcasts each plan before it runs it; a
`FollowingCore` has the same methods and runs the leader's plans. Requests and parameters are
compared as digests before they take effect; a lost process is named, and all processes end. Where
the first alone has requests (`serve --nnodes`, workers on Ray) it has an ordinary `EngineCore`,
over an executor that has the others run the same plans (`executor/multihost/directing.py`).
"""
