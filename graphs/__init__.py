"""Ready-made graphs, one a file, each readable in one screen."""
