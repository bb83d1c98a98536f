"""Other people's traces: one module a format, each a stream of request batches."""
