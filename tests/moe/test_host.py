"""Megatron is told what this machine has."""

from __future__ import annotations

import pytest
import torch
from megatron.core.extensions import transformer_engine
from megatron.core.transformer import multi_latent_attention

from moe.cpu import host


@pytest.mark.parametrize("gpu", [False, True])
def test_latent_attention_looks_for_transformer_engine_only_where_it_is_installed(
    gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    with host.megatron():
        assert multi_latent_attention.HAVE_TE is transformer_engine.HAVE_TE is False
