"""The cluster world: engines, trainer ranks and graders as Ray actors, on the wall clock."""
