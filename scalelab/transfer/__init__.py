"""New weights on their way from trainer ranks to engines."""
