"""Several cores or processes as one: replicas and their router, leader and followers."""
