"""What people watch a run by: progress lines, monitors, TensorBoard and trackers."""
