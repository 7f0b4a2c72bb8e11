"""A prefill server and a decode server behind a router: kills, lost requests, and speed beside one
server that does both."""
