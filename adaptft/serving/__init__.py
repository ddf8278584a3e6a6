"""Endpoints: what is served, by which engine, as which command, and the life of its process."""
