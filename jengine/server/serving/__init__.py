"""The running server without HTTP: the engine behind a queue, health monitoring, shutdown."""
