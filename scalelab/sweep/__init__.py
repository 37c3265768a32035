"""Run families as a whole: side by side or one after the other; finished runs are skipped, others resumed."""
