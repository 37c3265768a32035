"""A run on disk: the files that it writes, and how they are read, kept, copied and audited."""
