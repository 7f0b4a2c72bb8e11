"""Engines whose cores have processes of their own: how these are started, found and joined."""
