"""Fuzz test of a server: malformed and abusive requests on every route and field of its schema,
beside normal clients whose latency and answers are checked."""
