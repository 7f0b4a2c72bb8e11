"""The step: functions on arrays that run while it is traced, its state and its packed input."""
