"""vLLM: its command lines, its encoder-cache and KV-transfer protocol, its processes, and the port to them."""
