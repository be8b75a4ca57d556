"""The things that run weights or call an endpoint."""
