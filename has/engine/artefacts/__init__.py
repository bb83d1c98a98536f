"""Launch artefacts, one engine a module; all render the same typed plan."""
