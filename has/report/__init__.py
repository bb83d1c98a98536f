"""Tables and pictures: nouns and runs as documents, documents as terminal text or one self-contained page."""
