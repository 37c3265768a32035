"""Trainer ranks meet at one address, which nobody reaches from another network, or say why they do not."""

import socket
from pathlib import Path

import psutil
import pytest

from moe.errors import MoeError
from tests.helpers.moe_models import DENSE, rendezvous, trainer

pytestmark = pytest.mark.slow


def listening() -> set[str]:
    """Addresses at which this process listens."""
    return {one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.status == psutil.CONN_LISTEN}


def test_a_trainer_listens_at_the_given_address_alone() -> None:
    before = listening()
    one = trainer(DENSE)
    try:
        assert listening() - before <= {"127.0.0.1", "::1"}
    finally:
        one.close()


def test_a_trainer_can_meet_over_a_file(tmp_path: Path) -> None:
    one = trainer(DENSE, at=f"file://{tmp_path / 'meeting'}")
    one.close()


@pytest.mark.parametrize(
    ("at", "told"),
    [
        ("tcp://192.0.2.77:23456", r"cannot listen at 192.0.2.77:23456"),  # an address of documentation, nobody's
        ("127.0.0.1:23456", "is no place to meet at"),
        ("tcp://127.0.0.1", "is no place to meet at"),
    ],
)
def test_a_place_where_nobody_can_meet_is_named(at: str, told: str) -> None:
    with pytest.raises(MoeError, match=told):
        trainer(DENSE, at=at)


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(MoeError, match=r"cannot listen at 127\.0\.0\.1"):
            trainer(DENSE, at=f"tcp://127.0.0.1:{other.getsockname()[1]}")


def test_a_rank_whose_first_rank_never_comes_gives_up() -> None:
    with pytest.raises(MoeError, match="did not meet the others"):
        trainer(DENSE, rank=1, world=2, at=rendezvous(), deadline=1.0)
