"""The real schedule on a simulated clock, to predict a cluster's speed before it is rented. NumPy only."""
