"""How few trials find the best deployment: HAS's search against what people could use instead."""
