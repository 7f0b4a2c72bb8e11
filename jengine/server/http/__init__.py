"""What HTTP itself needs: keys, limits, bodies, event streams, sockets. Knows no endpoint."""
