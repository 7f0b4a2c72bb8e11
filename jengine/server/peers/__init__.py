"""Several API processes as one server: shared counters, and calls between them."""
