"""JSON that several endpoints share: sampling fields, log-probabilities, usage, metrics."""
