"""Decisions: facts and wishes in, plans out. Pure: no torch, no I/O, no clock."""
