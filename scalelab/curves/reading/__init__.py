"""Read curves: run folders, tables, and other people's logs."""

from scalelab.curves.reading.sources import pool, read_json_lines, read_source, read_sources

__all__ = ["pool", "read_json_lines", "read_source", "read_sources"]
