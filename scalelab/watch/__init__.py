"""Views of a run for people: progress lines, monitors, TensorBoard and trackers."""
