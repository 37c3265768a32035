"""The ranks of a training: how they meet, and the groups that they form."""
