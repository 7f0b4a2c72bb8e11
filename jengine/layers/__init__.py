"""Reusable mathematics inside the step: functions on arrays, no parameters of their own."""
