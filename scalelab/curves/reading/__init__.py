"""Read curves: run folders, tables, and other people's logs."""

from scalelab.curves.reading.sources import pool, pool_seeds, read_json_lines, read_source, read_sources

__all__ = ["pool", "pool_seeds", "read_json_lines", "read_source", "read_sources"]
