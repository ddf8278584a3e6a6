"""Endpoints: what is served, by which engine, as which command, and the life of its process."""

from adaptft.serving.endpoint import Endpoint, running, serve
from adaptft.serving.targets import plan_endpoint

__all__ = ["Endpoint", "plan_endpoint", "running", "serve"]
