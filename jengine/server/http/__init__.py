"""HTTP without endpoints: authentication, limits, bodies, event streams, sockets."""
