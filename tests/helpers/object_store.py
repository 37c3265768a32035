"""Bytes in Ray's object store, which weights stay out of."""

from __future__ import annotations

import ray
from ray._private.internal_api import get_memory_info_reply, get_state_from_address


def created() -> int:
    """Bytes of all objects that were ever put into the stores of the cluster's nodes, wherever they are now."""
    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return get_memory_info_reply(state).store_stats.cumulative_created_bytes
