"""What lies above one core or one process: replicas, their router, leader and
followers.
"""
