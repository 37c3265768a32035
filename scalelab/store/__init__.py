"""What a run leaves on disk: written, read, kept, copied and audited."""
