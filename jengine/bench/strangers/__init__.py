"""Requests made to do harm, of every route and field that a server says it has, and bystanders
whose answers are the check."""
