"""Print what a Parquet file says of the sizes of some columns, as JSON: values of the longest, and bytes, by row group.

A program of its own, since pyarrow 26 ends the process that asks for the counts of a damaged column.
"""

from __future__ import annotations

import json
import sys

from pyarrow import parquet


def main(path: str, *names: str) -> None:
    """Print a pair of numbers for each row group."""
    metadata, told = parquet.ParquetFile(path).metadata, []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        parts = [group.column(index) for index in range(group.num_columns)]
        parts = [part for part in parts if part.path_in_schema.partition(".")[0] in names]
        values = max((part.num_values for part in parts), default=0)
        told.append((values, sum(part.total_uncompressed_size for part in parts)))
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
