"""Soak test: a server under minutes of load with faults; reports lost, leaked or wrong results.

    python -m jengine.bench.marathon MODEL [--seconds 600 | --requests 10000] [-- server's flags]

Load of many kinds of clients, a canary whose greedy answer must never change, an injector that
stops and kills processes, samples of memory and metrics, and a scan of the log. The engine is not
in this process: the server is started as users start it.
"""
