"""Prune, then propose, try and learn: from a profile and a workload to a deployment with its evidence."""
