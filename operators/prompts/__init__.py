"""Prompt texts as data files; their hash goes into results."""
