"""What quantising a model came to, as text: how it compares, by what, and which layer is farthest off."""

from __future__ import annotations

from stoker.records.deploy.quantisation import MixedRecord, PairedAccuracy, QuantisationRecord
from stoker.ui.blocks import join, titled
from stoker.ui.report_text import Style
from stoker.ui.tables import render_facts, render_table

_SHOWN_LAYERS = 8
_FLOAT_BITS = 32
_RULES = {"minmax": "least and largest", "percentile": "99.95 % of numbers", "squares": "least squared error"}
_ROUNDINGS = {"compensated": "for least error of results", "nearest": "to nearest"}


def render_quantisation(record: QuantisationRecord, package: str, digest: str, style: Style | None = None) -> str:
    """A record as a page of text."""
    style = style or Style()
    facts = [
        ("package", f"{package} (digest {digest[:12]})"),
        ("samples", f"{record.calibrated_on} gave the ranges, {record.search.samples} chose the rule, "
                    f"{record.accept.samples} judge below"),
        *_compared(record.accept),
        ("weights", f"{record.weight_bits / 8000:.1f} kB, {_share(record)} of float"),
        ("ranges by", _RULES.get(record.rule, record.rule) + (", biases corrected" if record.corrected else "")),
        ("weights rounded", _ROUNDINGS.get(record.rounding, record.rounding)),
        ("widest sum", f"{record.widest_accumulator_bits} bits, proven from the weights"),
    ]  # fmt: skip
    worst = sorted(record.layers, key=lambda each: -each.error)[:_SHOWN_LAYERS]
    rows = [[each.name, f"{100 * each.error:.2f} %", each.layer or "(the model)"] for each in worst]
    tried = [
        [_RULES.get(each.rule, each.rule), "yes" if each.corrected else "no",
         _ROUNDINGS.get(each.rounding, each.rounding), f"{100 * each.error:.2f} %"]
        for each in record.tried
    ]  # fmt: skip
    heads = ("rule", "biases corrected", "weights rounded", "error")
    mixed, several = record.mixed, _outputs(record.accept)
    blocks = (
        [style.paint(style.cut(f"Integer model of {record.model}", style.width), 1)],
        render_facts(facts, style),
        titled(f"Widths that save {mixed.saved}", _mixed(mixed, style), style) if mixed else [],
        titled("Outputs", render_table(("output", "flips", "error"), several, style, right=(1, 2)), style)
        if several
        else [],
        titled("Farthest from float", render_table(("result", "error", "module"), rows, style, right=(1,)), style),
        titled("Ranges tried", render_table(heads, tried, style, right=(3,)), style),
    )
    return join(blocks, style, "")


def _mixed(found: MixedRecord, style: Style) -> list[str]:
    """Which widths became narrower, at what loss, and where the accept split said no."""
    first, taken, last = found.steps[0], found.steps[found.taken], len(found.steps) - 1
    refused = f"; the accept split refused {last - found.taken} narrower ones" if found.taken < last else ""
    facts = [
        ("allowed", f"{100 * found.most:.2f} % loss"),
        ("measured", f"{100 * taken.search:.2f} % where it was chosen, {100 * taken.accept:.2f} % where it is judged"),
        ("cost", f"{taken.cost:,.0f} bits, {100 * taken.cost / (first.cost or 1):.0f} % of the widest design"),
        ("steps", f"{found.taken} of one bit{refused}"),
    ]  # fmt: skip
    rows = [[each.layer, each.part, str(each.bits)] for each in found.widths]
    table = render_table(("result", "part", "bits"), rows, style, right=(2,)) if rows else []
    return [*render_facts(facts, style), *table]


def _outputs(found: PairedAccuracy) -> list[list[str]]:
    """Each of several outputs."""
    return [
        [each.name, "no scores" if each.flips is None else str(each.flips), f"{100 * each.error:.2f} %"]
        for each in found.outputs
    ]


def _compared(found: PairedAccuracy) -> list[tuple[str, str]]:
    """How whole numbers compare with real ones, a fact a line."""
    several = len(found.outputs) > 1
    worst = ", in the worst output" if several else ""
    facts = [("error", f"{100 * found.error:.2f} % of the outputs' spread{worst}")]
    if found.flips is not None and found.flips_high is not None:
        where = " in any output" if several else ""
        most = f"at most {100 * found.flips_high:.1f} %, 95 % interval"
        facts.insert(0, ("flips", f"{found.flips} of {found.samples}{where} ({most})"))
    if found.right is not None and found.right_low is not None and found.right_high is not None:
        interval = f"{100 * found.right_low:.1f} to {100 * found.right_high:.1f} %"
        right, real = (100 * each / found.samples for each in (found.right, found.float_right or 0))
        first = " of the first output" if several else ""
        facts.insert(0, ("accuracy", f"{right:.1f} %{first} ({interval}); float {real:.1f} % on the same samples"))
    return facts


def _share(record: QuantisationRecord) -> str:
    return f"{100 * record.weight_bits / max(1, _FLOAT_BITS * record.parameters):.0f} %"
