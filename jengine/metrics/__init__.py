"""Events and step statistics in, log lines out."""
