"""The version of HAS: what the package, its files and what it emits say of themselves."""

__version__ = "0.1.0"
