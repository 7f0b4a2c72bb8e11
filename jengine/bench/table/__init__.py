"""Tables of benchmark figures for the documentation, made of kept results."""
