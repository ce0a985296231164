"""How instructions are written, and where buffers lie."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.deploy.rtl.engine.drafts import Draft, Drafting, Loop
from stoker.deploy.rtl.engine.instructions import HEAD, ROWS, Instruction, InstructionKind, Level, encoded
from stoker.deploy.rtl.engine.shape import ADDRESS_BITS, EngineShape

MOST = (1 << ADDRESS_BITS) - 1


def test_no_two_fields_share_a_bit() -> None:
    for fields in (HEAD, (*HEAD, *ROWS)):
        bits = [32 * word + bit + at for _, word, bit, width in fields for at in range(width)]
        assert len(bits) == len(set(bits))
    assert max(32 * word + bit + width for _, word, bit, width in HEAD) <= 8 * 32
    assert min(word for _, word, _, _ in ROWS) >= 11


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(-50, 50), st.integers(-50, 50)), max_size=5),
    st.integers(0, 1000),
)
def test_moves_of_written_loops_go_through_the_addresses(loops: list[tuple[int, int, int]], base: int) -> None:
    levels = tuple(Level(count=count, a=a, c=c) for count, a, c in loops)
    instruction = Instruction(a=base, levels=levels)
    words = encoded(instruction)
    code = sum(word << (32 * at) for at, word in enumerate(words))
    rounds, address, seen = [0] * 7, (code >> 256) & MOST, []
    ends = [(code >> (352 + 96 * at)) & 0xFFFF for at in range(7)]
    while True:
        seen.append(address)
        going = next((at for at in range(7) if rounds[at] != ends[at]), None)
        if going is None:
            break
        rounds = [0] * going + [rounds[going] + 1] + rounds[going + 1 :]
        address = (address + ((code >> (352 + 96 * going + 16)) & MOST)) & MOST
    expected = [base]
    for count, a, _ in loops:
        expected = [each + at * a for at in range(count) for each in expected]
    assert seen == [each & MOST for each in expected]
    assert len(seen) == instruction.steps


def test_what_a_field_does_not_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="`shift` must fit 6 bits, got 64"):
        encoded(Instruction(shift=64))
    with pytest.raises(ValueError, match="`levels` must be at most 7 loops, got 8"):
        encoded(Instruction(levels=(Level(count=2),) * 8))
    with pytest.raises(ValueError, match="`count` of a loop must be 1 to 65536, got 65537"):
        encoded(Instruction(levels=(Level(count=65537),)))


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.integers(1, 40)), min_size=1, max_size=12))
def test_buffers_that_live_at_a_time_lie_apart(steps: list[tuple[int, int, int]]) -> None:
    drafting = Drafting(EngineShape(lanes=4))
    names = [drafting.buffer("b", size) for _, _, size in steps]
    for read, written, _ in steps:
        a, c = names[read % len(names)], names[written % len(names)]
        drafting.drafts.append(Draft(operation="", fields=Instruction(), a=a, c=c))
    where = drafting.addresses()
    lives = {name: [at for at, draft in enumerate(drafting.drafts) if name in draft.buffers] for name in where}
    for one, first in where.items():
        assert first % 4 == 0
        for other, second in where.items():
            if one != other and lives[one][0] <= lives[other][-1] and lives[other][0] <= lives[one][-1]:
                assert first + drafting.sizes[one] <= second or second + drafting.sizes[other] <= first


def test_more_loops_than_levels_are_written_out() -> None:
    drafting = Drafting(EngineShape())
    target, source = drafting.buffer("c", 1 << 10), drafting.buffer("a", 1 << 10)
    loops = tuple(Loop(2, a=5 << at, c=3 << at) for at in range(9))
    drafting.drafts.append(
        Draft(operation="y", fields=Instruction(kind=InstructionKind.NEST), a=source, c=target, outer=loops)
    )
    instructions, operations = drafting.instructions()
    assert len(instructions) == 4
    assert set(operations) == {"y"}
    assert [each.end for each in instructions] == [False, False, False, True]
    assert sorted(each.a - instructions[0].a for each in instructions) == [0, 5, 10, 15]
