"""Clients of other makers, tried against the server."""
