"""Code tasks and their verifier."""
