"""Math tasks and their verifier."""
