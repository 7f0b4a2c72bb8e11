"""A server under load for minutes, with faults: what is lost, leaked or wrong at the end.

    python -m jengine.bench.marathon MODEL [--seconds 600 | --requests 10000] [-- server's flags]

Load of many kinds of clients, a canary whose greedy answer must never change, an injector that
stops and kills processes, samples of memory and metrics, and a scan of the log. The engine is not
in this process: the server is started as users start it.
"""
