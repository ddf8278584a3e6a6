"""Endpoints: what is served, by which engine, as which command, and the life of its process."""

from adaptft.serving.checking import Checked, check_endpoint
from adaptft.serving.endpoint import Endpoint, base_url, running, serve, served_models
from adaptft.serving.targets import plan_endpoint

__all__ = ["Checked", "Endpoint", "base_url", "check_endpoint", "plan_endpoint", "running", "serve", "served_models"]
