"""Merging, compressing and checking exports."""

from adaptft.exporting.export import export
from adaptft.exporting.sources import ExportSource, find_source, output_folder

__all__ = ["ExportSource", "export", "find_source", "output_folder"]
