import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker.train.exchanging.payload import Doubt, GatheredPayload, GatheredSegment, Header

types = st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64])


@st.composite
def segments(draw: st.DrawFn) -> GatheredSegment:
    return GatheredSegment(
        name="layer.weight", method=draw(st.sampled_from(["late", "rows"])), start=0, stop=0,
        shape=(draw(st.integers(1, 9)), draw(st.integers(1, 9))), room=draw(st.integers(0, 7)), factor_type=draw(types),
    )  # fmt: skip


@given(drawn=st.lists(segments(), min_size=1, max_size=4), data=st.data())
def test_what_is_written_is_read(drawn: list[GatheredSegment], data: st.DataObject) -> None:
    payload = GatheredPayload(drawn, torch.device("cpu"))
    memory = payload.empty()
    written: list[tuple[Header, list[torch.Tensor]]] = []
    for place, segment in enumerate(drawn):
        rows = data.draw(st.integers(0, segment.room))
        parts = [torch.randn(rows, width).mul(9).to(kind) for kind, width in segment.parts]
        header = Header(rows=rows, doubt=data.draw(st.sampled_from(Doubt)), weights=data.draw(st.integers(0, 2**62)))
        payload.write(memory, place, header, parts)
        written.append((header, parts))
    gathered = torch.stack([payload.empty(), memory])
    for place, (header, parts) in enumerate(written):
        assert payload.headers(gathered)[place] == [Header(rows=0), header]
        for part, found in zip(parts, payload.read(gathered[1], place, header.rows), strict=True):
            assert torch.equal(part, found)


def test_bytes_are_those_of_the_closed_form_but_for_headers() -> None:
    segment = GatheredSegment(
        name="", method="late", start=0, stop=0, shape=(2048, 1024), room=32, factor_type=torch.float32
    )  # fmt: skip
    assert segment.bytes == 64 + 4 * 32 * (2048 + 1024)
