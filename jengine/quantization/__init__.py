"""Weight schemes: how a weight is stored, what the step is given, and how it multiplies."""
