"""The `has` command: one file a command; `wiring` chooses adapters, `console` and `render` speak."""
