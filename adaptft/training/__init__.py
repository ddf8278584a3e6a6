"""Carrying out a training plan."""
