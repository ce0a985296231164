"""What is in a unit, counted from its parameters: bits of adders, multiplexers and registers, memories, multipliers.

The counts follow the text of ``rtl/units``; what synthesis makes of them is fitted (:mod:`stoker.deploy.search.model`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace

from stoker.deploy.rtl.constant_sums import ConstantSums, width
from stoker.deploy.rtl.constant_text import waiting_bits
from stoker.deploy.rtl.structure import Parameter
from stoker.deploy.search.memory_forms import MemoryShape

_FACTOR_BITS = 16
_SPLIT = 17
_WIDE = 18
"""Most bits of a factor of a hardware multiplier; :data:`_SPLIT` of an accumulator go into the first of two."""
NARROW_BITS = 9
"""Bits of a product from which on the multipliers of all families are used for it; some leave less to lookup tables."""
_SHALLOW = 32
"""Words of a FIFO that is read at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitContents:
    """What is counted; contents of parts of a unit add up.

    Attributes:
        adders: bits of sums, differences and comparisons of two signals.
        addresses: bits of the same in line buffers, where many are narrow and some vanish.
        muxes: bits of multiplexers.
        shifters: bits of registers that are loaded or shifted.
        counters: bits of counters.
        registers: bits of registers that hold data.
        address_registers: bits of registers of line buffers.
        taken_adders: of `adders`, bits that multipliers with an adder behind them take in.
        taken_muxes: of `muxes`, the same.
        taken_registers: of `registers`, the same of multipliers with registers: factors, products, sums of two.
        multipliers: of hardware.
        narrow_multipliers: of these, those whose product has less than :data:`NARROW_BITS` bits.
        products: bits of both factors of each multiplier, multiplied: what it is where there is no hardware for it.
        fixed_products: the same of multipliers by constants.
        narrow_products: of `products` and `fixed_products`, those of narrow multipliers.
        longest: the largest sum of bits of both factors; of parts together the largest of theirs.
        sums: bits of additions by which weights are part of the circuit.
        sum_registers: bits of their results.
        waiting: bits of registers in which numbers wait for such an addition.
        subtracted: bits that such additions subtract.
        windows: line buffers.
        units: with an output FIFO.
        memories: of all parts.
    """

    adders: float = 0
    addresses: float = 0
    muxes: float = 0
    shifters: float = 0
    counters: float = 0
    registers: float = 0
    address_registers: float = 0
    taken_adders: float = 0
    taken_muxes: float = 0
    taken_registers: float = 0
    multipliers: int = 0
    narrow_multipliers: int = 0
    products: float = 0
    fixed_products: float = 0
    narrow_products: float = 0
    longest: int = 0
    sums: int = 0
    sum_registers: int = 0
    waiting: int = 0
    subtracted: int = 0
    windows: int = 0
    units: int = 0
    memories: tuple[MemoryShape, ...] = ()

    def __add__(self, other: UnitContents) -> UnitContents:
        sums = {each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)}
        return replace(UnitContents(**sums), longest=max(self.longest, other.longest))

    def times(self, count: int) -> UnitContents:
        """So many of them."""
        times = {each.name: getattr(self, each.name) * count for each in fields(self)}
        return replace(UnitContents(**times), longest=self.longest if count else 0)


def contents_of(module: str, parameters: Mapping[str, Parameter]) -> UnitContents:
    """What is in a unit.

    Raises:
        KeyError: there is no such unit.
    """
    numbers = {name: value for name, value in parameters.items() if isinstance(value, int)}
    return _UNITS[module](numbers)


def sums_contents(sums: ConstantSums) -> UnitContents:
    """What the additions of a layer add to its unit, whose weights are part of the circuit."""
    return UnitContents(
        sums=sums.adder_bits,
        sum_registers=sum(width(each.low, each.high) for each in sums.sums),
        waiting=waiting_bits(sums),
        subtracted=sums.subtracted_bits,
    )


def total(parts: Iterable[UnitContents]) -> UnitContents:
    """All of them together."""
    found = UnitContents()
    for part in parts:
        found = found + part
    return found


def end_contents(words: int) -> UnitContents:
    """What an input or output of a design adds: a counter of a sample's words."""
    return _counter(words)


def fork_contents(readers: int) -> UnitContents:
    """What a stream with several readers adds."""
    return UnitContents(muxes=2 * readers, counters=readers)


def _bits(count: int) -> int:
    """Bits that count from 0 to ``count - 1``; at least one."""
    return max(1, (count - 1).bit_length())


def _counter(count: int) -> UnitContents:
    return UnitContents(counters=_bits(count)) if count > 1 else UnitContents()


def _matrix(p: Mapping[str, int]) -> UnitContents:
    lanes = p["PE"] // p["BEATS"]
    each = p["TAPS"] if p["OWN"] else p["TAPS"] * p["LANES"]
    sum_beats = p["KERNEL_Y"] * p["KERNEL_X"] // p["TAPS"] * (p["WORDS"] // p["GROUPS"])
    sums = p["FOLDS"] * p["GROUPS"]
    factor = p["IN_W"] + 1 - p["IN_SIGNED"]
    return total((
        _window({**p, "W": p["IN_W"]}),
        _array(p["PE"], each, factor, p["WEIGHT_W"], p["ACC_W"], sum_beats * sums, sums),
        _serialised(lanes * (p["ACC_W"] - _unused(p)), p["BEATS"]),
        _requantiser(lanes, p),
        _results(lanes * p["OUT_W"], p["DEPTH"]),
    ))  # fmt: skip


def _array(pe: int, each: int, factor: int, weight: int, acc: int, words: int, sums: int) -> UnitContents:
    """``mac_array``: products, trees of adders, accumulators, weights and biases."""
    levels = (each - 1).bit_length()
    product = factor + weight
    held, added, count = 0, 0, each
    # A multiplier takes in the first sum: the accumulator where no other product comes to it, else that of each pair.
    pairs = min(product + 1, acc)
    taken_sums, taken_adders = (acc, acc) if each == 1 else (-(-each // 2) * pairs, each // 2 * pairs)
    narrow = product < NARROW_BITS
    for level in range(1, levels + 1):
        # Declared as wide as the last level; the bits above a level's own are copies of its sign, and are merged.
        width = min(product + level, acc)
        added += count // 2 * width
        count = -(-count // 2)
        held += count * width
    bits = each * factor * weight
    own_weight = 0 if words == 1 else each * weight
    one = UnitContents(
        registers=each * product + held + acc, adders=added + acc, muxes=acc, multipliers=each,
        products=bits if words > 1 else 0, fixed_products=0 if words > 1 else bits, longest=product,
        taken_registers=0 if narrow else each * product + own_weight + taken_sums,
        taken_adders=0 if narrow else taken_adders, taken_muxes=acc if each == 1 and not narrow else 0,
        narrow_multipliers=each * narrow, narrow_products=bits * narrow,
    )  # fmt: skip
    weights = pe * each * weight if words > 1 else 0
    control = UnitContents(counters=_bits(words) + _bits(sums), registers=weights + 3 * (levels + 1))
    memories = (
        MemoryShape(use="weights", words=words, bits=pe * each * weight),
        MemoryShape(use="biases", words=sums, bits=pe * acc),
    )  # fmt: skip
    return one.times(pe) + control + UnitContents(memories=memories)


def _serialised(bits: int, beats: int) -> UnitContents:
    if beats == 1:
        return UnitContents(registers=bits)
    return UnitContents(registers=bits * beats, shifters=bits * (beats - 1), counters=_bits(beats + 1))


def _requantiser(lanes: int, p: Mapping[str, int]) -> UnitContents:
    """``requantise``, or ``thresholds``."""
    if p.get("THRESHOLDS"):
        return _thresholds(lanes, p)
    acc, factors, shift, out = p["ACC_W"], p["MULTIPLIERS"], p["SHIFT"], p["OUT_W"]
    product = acc + _FACTOR_BITS + 1 if factors else acc
    kept = max(product - shift, 1) + 1
    wide = max(kept, out + 2)
    split = factors > 0 and acc > _SPLIT
    dropped = max(shift - 1, 0)  # bits below the point, but for the half that is added
    first = acc - _unused(p)
    early = _SPLIT + _FACTOR_BITS + acc if split else product if factors else first
    factor = _FACTOR_BITS if factors > 1 else 0
    lane = UnitContents(
        taken_registers=first + factor + early + max(product - dropped, 1) if factors else 0,
        taken_adders=acc if split else 0,
        registers=first + factor + early + max(product - dropped, 1) + kept + out,
        adders=(acc if split else 0) + wide, muxes=2 * out + wide, multipliers=_law_multipliers(acc, factors),
        products=acc * _FACTOR_BITS if factors > 1 else 0, fixed_products=acc * _FACTOR_BITS if factors == 1 else 0,
        longest=min(acc, _WIDE) + _FACTOR_BITS if factors > 1 else 0,
    )  # fmt: skip
    memories = (MemoryShape(use="multipliers", words=factors, bits=lanes * _FACTOR_BITS),) if factors > 1 else ()
    return lane.times(lanes) + UnitContents(counters=_bits(factors) if factors > 1 else 0, memories=memories)


def _thresholds(lanes: int, p: Mapping[str, int]) -> UnitContents:
    """``thresholds``: in each step a comparison with what a memory gives."""
    words, bits = p["THRESHOLDS"], p["SUM_W"]
    steps = (p["HIGH"] - p["LOW"]).bit_length()
    lane = UnitContents(
        adders=steps * bits, registers=(steps - 1) * bits + steps * (steps + 1) // 2,
        memories=tuple(
            MemoryShape(use="thresholds", words=words << step, bits=p["THRESHOLD_W"]) for step in range(steps)
        ),
    )  # fmt: skip
    channel = _bits(words) if words > 1 else 0
    return lane.times(lanes) + UnitContents(counters=channel, registers=steps + max(steps - 2, 0) * channel)


def _unused(p: Mapping[str, int]) -> int:
    """Low bits of an accumulator that its requantiser never looks at: without multipliers, those below the point."""
    return 0 if p.get("THRESHOLDS") or p["MULTIPLIERS"] else min(max(p["SHIFT"] - 1, 0), p["ACC_W"] - 1)


def _law_multipliers(acc: int, factors: int) -> int:
    """Hardware multipliers of a lane of ``requantise``."""
    if not factors:
        return 0
    if acc <= _SPLIT:
        return 1
    high = acc - _SPLIT
    # A single bit needs none; beyond the width of a multiplier, the part is split once more.
    return 1 + (0 if high < 2 else -(-high // _WIDE))


def _fifo(bits: int, depth: int) -> UnitContents:
    shallow = depth <= _SHALLOW
    place, count = _bits(depth), (depth + 1 - 1).bit_length()
    return UnitContents(
        counters=2 * place + count, muxes=count,
        memories=(MemoryShape(use="FIFO", words=depth, bits=bits, written=True, clocked=not shallow),),
    )  # fmt: skip


def _results(bits: int, depth: int) -> UnitContents:
    """``output_fifo`` and ``credits``."""
    count = depth.bit_length()
    return _fifo(bits, depth) + UnitContents(counters=count, adders=count, units=1)


def _window(p: Mapping[str, int]) -> UnitContents:
    """``window``."""
    words, width, height, rows = p["WORDS"], p["WIDTH"], p["HEIGHT"], p["ROWS"]
    taps, groups = p.get("TAPS", 1), p["GROUPS"]
    kernel = p["KERNEL_Y"], p["KERNEL_X"]
    dilation = p.get("DILATION_Y", 1), p.get("DILATION_X", 1)
    row_words = width * words
    ring = rows * row_words
    address, word = _bits(ring), _bits(row_words)
    of_rows = (height + rows).bit_length()
    span = (kernel[0] - 1) * dilation[0] + 1
    y_bits = (p["OUT_Y"] * p["STRIDE_Y"] + span + p["TOP"] + height).bit_length() + 1
    x_bits = ((p["OUT_X"] * p["STRIDE_X"] + kernel[1] * dilation[1] + p["LEFT"] + width) * words).bit_length() + 1
    step_x = min(taps, kernel[1])
    steps = kernel[1] // step_x, kernel[0] // max(1, taps // kernel[1])
    counters = total(
        _counter(count)
        for count in (words // groups, *steps, p.get("FOLDS", 1), groups, p["OUT_X"], p["OUT_Y"])
    )  # fmt: skip
    moves_y, moves_x = p["OUT_Y"] > 1 or kernel[0] > 1, p["OUT_X"] > 1 or kernel[1] > 1
    many_words = words > 1
    # Registers: where to write, rows of the ring, row and step in the ring, in the image, column, word.
    held = address + word + 6 * of_rows + 2 * address + (2 * y_bits if moves_y else 0) + (2 * x_bits if moves_x else 0)
    held += (2 * word if many_words else 0) + 12
    sums = address + word + 3 * of_rows + 6 * address + (3 * y_bits if moves_y else 0) + (3 * x_bits if moves_x else 0)
    sums += 2 * word if many_words else 0
    data = p["LANES"] * p["W"]
    wraps = 3 * address if kernel[0] > 1 or height > 1 else 0
    one = UnitContents(
        address_registers=2 * address + (x_bits if moves_x else 0) + 3, registers=data,
        addresses=2 * address + wraps,
        memories=(MemoryShape(use="line buffer", words=ring, bits=data, written=True),),
    )  # fmt: skip
    return counters + UnitContents(address_registers=held, addresses=sums, windows=1) + one.times(taps)


def _constant(p: Mapping[str, int]) -> UnitContents:
    """``constant_unit``, without its additions."""
    lanes = p["PE"] // p["BEATS"]
    return total((
        _window({**p, "W": p["IN_W"], "WORDS": 1, "GROUPS": 1}),
        _counter(p["BEATS"]),
        UnitContents(registers=p["LEVELS"]),
        _serialised(lanes * (p["ACC_W"] - _unused(p)), p["BEATS"]),
        _requantiser(lanes, p),
        _results(lanes * p["OUT_W"], p["DEPTH"]),
    ))  # fmt: skip


def _pool(p: Mapping[str, int]) -> UnitContents:
    lanes, acc = p["LANES"], p["ACC_W"]
    kept = UnitContents(registers=acc, adders=acc * (1 if p["LARGEST"] else 2), muxes=acc).times(lanes)
    law = UnitContents() if p["LARGEST"] else _requantiser(lanes, p)
    lines = _window({**p, "W": p["IN_W"], "GROUPS": p["WORDS"]})
    return lines + kept + law + _results(lanes * p["OUT_W"], p["DEPTH"])


def _add(p: Mapping[str, int]) -> UnitContents:
    lanes, acc = p["LANES"], p["ACC_W"]
    terms = [_scaled(p["A_W"], acc, p["A_BY"])] + ([] if p["ONE"] else [_scaled(p["B_W"], acc, p["B_BY"])])
    lane = total(terms) + UnitContents(registers=acc, adders=0 if p["ONE"] else acc)
    return lane.times(lanes) + _requantiser(lanes, p) + _results(lanes * p["OUT_W"], p["DEPTH"])


def _scaled(bits: int, acc: int, by: int) -> UnitContents:
    """``scaled``: a sum of shifts for each half of the factor's signed digits, and their sum."""
    size = abs(by)
    plus, minus = (3 * size & ~size) >> 1, (size & ~(3 * size)) >> 1
    digits = [part.bit_count() for part in ((plus | minus) & 0xFF, (plus | minus) >> 8)]
    used = [count for count in digits if count]
    adds = sum(count - 1 for count in used) + max(0, len(used) - 1)
    wide = min(acc, bits + 1 + size.bit_length())
    return UnitContents(registers=bits + 1 + wide * (len(used) + 1), adders=bits + 1 + adds * wide)


def _table(p: Mapping[str, int]) -> UnitContents:
    lanes, out = p["LANES"], p["OUT_W"]
    entries = MemoryShape(use="table", words=1 << p["IN_W"], bits=out)
    lane = UnitContents(registers=out, memories=(entries,))
    return lane.times(lanes) + _results(lanes * out, p["DEPTH"])


def _lookup(p: Mapping[str, int]) -> UnitContents:
    lanes, acc = p["LANES"], p["ACC_W"]
    row = 1 << _bits(p["WORDS"])
    indices = _window({
        "LANES": 1, "W": _bits(p["ROWS_OF_TABLE"]), "WORDS": 1, "HEIGHT": 1, "WIDTH": p["COUNT"], "KERNEL_Y": 1,
        "KERNEL_X": p["COUNT"], "STRIDE_Y": 1, "STRIDE_X": 1, "TOP": 0, "LEFT": 0, "OUT_Y": 1, "OUT_X": 1,
        "GROUPS": 1, "FOLDS": p["WORDS"], "ROWS": p["ROWS"],
    })  # fmt: skip
    table = MemoryShape(use="rows", words=row * p["ROWS_OF_TABLE"], bits=lanes * p["ENTRY_W"])
    kept = UnitContents(registers=p["ENTRY_W"] + acc, adders=acc, muxes=acc).times(lanes)
    law = _requantiser(lanes, p) if p["SUMMED"] else UnitContents()
    rest = UnitContents(counters=_bits(p["WORDS"]), registers=6, memories=(table,))
    return indices + kept + law + rest + _results(lanes * p["OUT_W"], p["DEPTH"])


def _resize(p: Mapping[str, int]) -> UnitContents:
    wide, narrow = max(p["IN_LANES"], p["OUT_LANES"]), min(p["IN_LANES"], p["OUT_LANES"])
    packs = p["IN_LANES"] < p["OUT_LANES"]
    return UnitContents(
        registers=wide * p["W"], shifters=0 if packs else (wide - narrow) * p["W"], counters=_bits(wide // narrow + 1)
    )  # fmt: skip


def _concat(p: Mapping[str, int]) -> UnitContents:
    return UnitContents(muxes=p["W"] + 3, counters=_bits(p["FIRST"] + p["SECOND"]))


_UNITS: Mapping[str, Callable[[Mapping[str, int]], UnitContents]] = {
    "matrix_unit": _matrix,
    "constant_unit": _constant,
    "pool_unit": _pool,
    "add_unit": _add,
    "table_unit": _table,
    "lookup_unit": _lookup,
    "resize_stream": _resize,
    "concat_stream": _concat,
    "fifo": lambda p: _fifo(p["W"], p["DEPTH"]),
}
