"""Devices: what work runs on, how long it takes there, and how one GPU is shared."""
