"""A router in front of servers: which of them answers a request, and what if it does not.

In: HTTP requests of OpenAI's API. Out: the answer of a server, unchanged. Must not know engines.
"""
