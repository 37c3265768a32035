"""Sizes of the messages and buffers that weights travel in; plans count them, too."""

MESSAGE = 2**28
"""Bytes of weights after which a broadcast sends a message; a sender and a receiver hold two on their devices."""

PARCEL = 2**26
"""Bytes of a vocabulary's rows that are sent at once; experts are sent one by one, other matrices whole."""
