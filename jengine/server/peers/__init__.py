"""Several API processes as one server: what they share, and what they ask each other."""
