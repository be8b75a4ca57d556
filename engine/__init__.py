"""How a graph is written, checked, planned and run; knows nothing of retrieval."""
