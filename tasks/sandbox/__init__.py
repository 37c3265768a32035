"""Run untrusted programs: a pre-warmed parent forks one confined child per program.

Start at `tasks.sandbox.pool.Pool`. This package file imports nothing, because the fork server loads it too.
"""
