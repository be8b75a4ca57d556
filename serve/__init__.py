"""The faces of headrace: command line and settings."""
