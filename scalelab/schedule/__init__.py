"""The schedules decide who waits for whom; free of Ray, clocks and tensors, so that they can be simulated."""
