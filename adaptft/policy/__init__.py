"""Decisions: facts and wishes in, plans out. Pure: no torch, no I/O, no clock."""

from adaptft.policy.training import plan_training

__all__ = ["plan_training"]
