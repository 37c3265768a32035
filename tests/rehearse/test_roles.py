"""Few roles stand for every rank, and hold the ends of every cut."""

from hypothesis import given
from hypothesis import strategies as st

from moe.settings import Layout
from scalelab.rehearse.roles import engine_roles, trainer_roles

SIZES = st.sampled_from([1, 2, 4])


@given(SIZES, SIZES, st.integers(1, 6), SIZES, st.integers(1, 3))
def test_roles_stand_for_all_trainer_ranks(tensor: int, context: int, pipeline: int, expert: int, data: int) -> None:
    layout = Layout(tensor=tensor, context=context, pipeline=pipeline, expert=expert)
    world = tensor * context * pipeline * expert * data
    roles = trainer_roles(layout, world)
    assert sum(role.stands_for for role in roles) == world
    assert len({role.rank for role in roles}) == len({role.name for role in roles}) == len(roles) <= 6
    assert {role.stage for role in roles} == {0, min(1, pipeline - 1), pipeline - 1}
    assert all(role.rank * pipeline // world == role.stage for role in roles)


@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 80))
def test_roles_stand_for_all_devices_of_engines(devices: int, engines: int) -> None:
    roles = engine_roles(devices, engines)
    assert sum(role.stands_for for role in roles) == devices * engines
    assert {role.rank for role in roles} == {0, devices - 1}


def test_a_cut_model_has_a_first_and_a_last_rank_in_each_stage() -> None:
    roles = trainer_roles(Layout(tensor=4, expert=16, pipeline=2), 32)
    assert [role.rank for role in roles] == [0, 15, 16, 31]
    assert roles[3].name == "trainer rank 31: stage 2 of 2, last of tensor 4, expert 16"
