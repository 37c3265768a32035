"""Fit one curve: models, solver, prior, posterior, intervals."""
