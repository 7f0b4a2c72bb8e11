"""Programs that run peer engines on a trace, in the peer's own Python environment; they import
nothing of jengine.

Each reads its settings as one JSON line, answers {"ready": ...}, and then runs the trace once per
further line, answering {"seconds": ..., "generated": ...}.
"""
