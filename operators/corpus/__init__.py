"""The store behind retrieval: documents, chunks, and the dense and lexical indexes."""
