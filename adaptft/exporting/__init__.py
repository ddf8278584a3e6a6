"""Merging, compressing and checking results."""
