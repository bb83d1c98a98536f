"""The pipeline as a discrete-event kernel, and runs over it."""
