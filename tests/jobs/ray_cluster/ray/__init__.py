"""Stands in for Ray where the driver runs in tests."""
