"""Programs that run a peer on a trace, in the peer's own Python: they import nothing of ours.

Each reads its settings as one JSON line, says {"ready": ...}, and then runs the trace once for each
further line, answering with {"seconds": ..., "generated": ...}.
"""
