"""What a picture of a cut shows: its shapes with their words, in which row each stands, and what leads where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from stoker.core.units import format_bytes, format_count
from stoker.records.events import CutChosen, GraphNode, GraphValue
from stoker.ui.cuts import MAX_REASON, PLACE_NAMES, PLACES, seconds_of, sent_values, short_name, write_time, write_type
from stoker.ui.figures import shorten, shorten_start
from stoker.ui.graph_folding import Box, fold, fold_values, rows_of

MAX_NOTES = 8
"""Reasons below the picture; the pointer finds the others."""
_TITLE_CHARACTERS, _CHARACTERS = 21, 28
"""Room in a shape, in characters of its first line and of the others."""


@dataclass(kw_only=True)
class SceneItem:
    """Something with a place in the picture."""

    kind: str
    """``leaf``, ``sent``, or a call's place."""
    lines: list[str]
    right: str = ""
    """Text at the end of the last line."""
    tip: str = ""
    share: float = 0.0
    """Its time over that of the costliest."""
    note: int = 0
    """Number of the reason below the picture; 0 for none."""


@dataclass(kw_only=True)
class Scene:
    """Items, their rows, and what leads from one to another."""

    items: list[SceneItem] = field(default_factory=list[SceneItem])
    row_of: dict[int, int] = field(default_factory=dict[int, int])
    edges: dict[tuple[int, int], None] = field(default_factory=dict[tuple[int, int], None])
    notes: list[str] = field(default_factory=list[str])
    boundary_row: int = 1

    def add(self, item: SceneItem, row: int) -> int:
        """Puts an item into a row; its number."""
        self.items.append(item)
        self.row_of[len(self.items) - 1] = row
        return len(self.items) - 1


def build_scene(cut: CutChosen) -> Scene:
    """The picture's content."""
    scene = Scene()
    boxes = fold(cut)
    rows = rows_of(boxes)
    moved = [rows[number] for number, box in enumerate(boxes) if box.place == "moved"]
    scene.boundary_row = max(moved, default=-1) + 2
    scene.notes, note_of = _reasons(cut)
    longest_s = max((seconds_of(box.nodes) for box in boxes), default=0.0) or 1.0
    item_of: dict[int, int] = {}
    for number, box in enumerate(boxes):
        row = rows[number] + (1 if box.place == "moved" else scene.boundary_row + 1)
        item_of[number] = scene.add(_box_item(box, cut, longest_s, note_of), row)
    for number, box in enumerate(boxes):
        for source in box.sources:
            # Edges that cross the boundary go through its tensors.
            if (boxes[source].place == "moved") == (box.place == "moved"):
                scene.edges[item_of[source], item_of[number]] = None
    _add_values(scene, cut, boxes, item_of)
    return scene


def _add_values(scene: Scene, cut: CutChosen, boxes: list[Box], item_of: dict[int, int]) -> None:
    """The leaves of the batch at the top, and what crosses on the boundary, linked to the calls that take them."""
    box_of = {node.number: number for number, box in enumerate(boxes) for node in box.nodes}
    users: dict[int, set[int]] = {value.number: set() for value in cut.values}
    for node in cut.nodes:
        for number in node.inputs:
            users.get(number, set[int]()).add(box_of[node.number])
    inside = {number: frozenset(at for at in found if boxes[at].place == "moved") for number, found in users.items()}
    leaves = [value for value in cut.values if value.producer is None]
    origin: dict[int, int] = {}
    for group in fold_values(leaves, lambda value: (inside[value.number], value.crosses)):
        item = scene.add(_leaf_item(group), 0)
        origin.update((value.number, item) for value in group)
        for value in group:
            scene.edges.update(((item, item_of[at]), None) for at in sorted(inside[value.number]))
    for value in cut.values:
        if value.producer is not None and value.producer in box_of:
            origin[value.number] = item_of[box_of[value.producer]]
    sent = [value for value in sent_values(cut) if _comes_from_above(scene, origin.get(value.number))]
    for group in fold_values(sent, lambda value: origin[value.number]):
        pill = scene.add(_sent_item(group), scene.boundary_row)
        for value in group:
            scene.edges[origin[value.number], pill] = None
            outside = sorted(users[value.number] - inside[value.number])
            scene.edges.update(((pill, item_of[at]), None) for at in outside)


def _comes_from_above(scene: Scene, item: int | None) -> bool:
    """Whether something lies on the data workers' side; a damaged record may say otherwise."""
    return item is not None and scene.row_of[item] < scene.boundary_row


def _reasons(cut: CutChosen) -> tuple[list[str], dict[str, int]]:
    """Why calls stay, the choices before the stateful ones, the frequent before the rare; and each one's number."""
    counts = Counter((node.place, node.why) for node in cut.nodes if node.why and node.place != "moved")
    ranked = sorted(
        counts.items(), key=lambda pair: (PLACES.index(pair[0][0]) if pair[0][0] in PLACES else 9, -pair[1])
    )
    shown = ranked[:MAX_NOTES]
    notes = [f"{shorten(why, MAX_REASON)} ({format_count(count, 'call')})" for (_, why), count in shown]
    return notes, {why: number for number, ((_, why), _) in enumerate(shown, 1)}


def _box_item(box: Box, cut: CutChosen, longest_s: float, note_of: dict[str, int]) -> SceneItem:
    time = write_time(box.nodes)
    why = next((node.why for node in box.nodes if node.why), "")
    names = list(dict.fromkeys(short_name(function) for function in box.functions))
    if len(box.nodes) == 1:
        title, kind = shorten(names[0], _TITLE_CHARACTERS), _results(box.nodes[0], cut)
    elif len(names) == 1:
        times = f" ×{len(box.nodes)}"
        title, kind = shorten(names[0], _TITLE_CHARACTERS - len(times)) + times, _results(box.nodes[-1], cut)
    else:
        title, kind = f"{len(box.nodes)} calls", ", ".join(names)
    place = box.sites[0] if len(box.sites) == 1 else f"{len(box.sites)} lines"
    return SceneItem(
        kind=box.place if box.place in PLACES else "stateful",
        lines=[title, shorten(kind, _CHARACTERS), shorten_start(place, 27 - len(time))],
        right=time,
        tip=_tip(box, time, why),
        share=seconds_of(box.nodes) / longest_s,
        note=note_of.get(why, 0) if box.place != "moved" else 0,
    )


def _tip(box: Box, time: str, why: str) -> str:
    calls = f"{', '.join(box.functions[:12])} at {', '.join(box.sites[:12])}"
    count = f"{format_count(len(box.nodes), 'call')}, " if len(box.nodes) > 1 else ""
    place = PLACE_NAMES.get(box.place, box.place)
    spent = f"{time} a step; " if time else ""
    return f"{calls}: {count}{spent}{place}" + (f": {why}" if why and box.place != "moved" else "")


def _results(node: GraphNode, cut: CutChosen) -> str:
    made = [value for value in cut.values if value.number in node.outputs]
    if not made:
        return "not followed further"
    return write_type(made[0]) if len(made) == 1 else f"{len(made)} of {write_type(made[0])}"


def _leaf_item(group: list[GraphValue]) -> SceneItem:
    size = format_bytes(bytes_of(group))
    sent = "" if any(value.crosses for value in group) else ", not sent"
    what = write_type(group[0]) if len(group) == 1 else f"{group[0].label} … {group[-1].label}"
    lines = [shorten(group[0].label if len(group) == 1 else f"{len(group)} tensors", 22), shorten(what, _CHARACTERS)]
    return SceneItem(kind="leaf", lines=lines, tip=f"{_labels(group)}: {size} of the batch{sent}")


def _sent_item(group: list[GraphValue]) -> SceneItem:
    size = format_bytes(bytes_of(group))
    name = group[0].label if len(group) == 1 else f"{len(group)} tensors"
    kept = next((f"; {value.kept}" for value in group if value.kept), "")
    tip = f"{_labels(group)}: {size} a batch, sent by data workers to the training process{kept}"
    return SceneItem(kind="sent", lines=[f"{shorten(name, _CHARACTERS - 5 - len(size))} · {size}"], tip=tip)


def bytes_of(group: Sequence[GraphValue]) -> int:
    """Bytes of some tensors."""
    return sum(value.size_bytes for value in group)


def _labels(group: Sequence[GraphValue]) -> str:
    named = ", ".join(f"{value.label} ({write_type(value)})" for value in group[:8])
    return named + (f" and {len(group) - 8} more" if len(group) > 8 else "")
