"""Graphs over HTTP: JSON and server-sent events, with deadlines, admission and resumption."""
