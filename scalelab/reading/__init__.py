"""Read curves: run folders, tables, and other people's logs."""

from scalelab.reading.settings import Reading, load_reading
from scalelab.reading.sources import ReadLog, open_sources, pool, pool_seeds, read_sources, read_with

__all__ = ["ReadLog", "Reading", "load_reading", "open_sources", "pool", "pool_seeds", "read_sources", "read_with"]
