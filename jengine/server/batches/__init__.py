"""Requests of OpenAI's batch files, answered by the handlers of the server's routes."""
