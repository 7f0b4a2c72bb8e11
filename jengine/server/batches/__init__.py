"""OpenAI's batch API: batch files answered by the handlers of the server's routes."""
