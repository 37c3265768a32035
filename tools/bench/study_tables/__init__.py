"""Tables and pictures of the study, from the runs that lie in docs/study/runs."""
