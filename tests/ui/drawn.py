"""What a drawing of percents holds: lines of a class, and the room of each label."""

import re

from stoker.ui.drawing.labels import LabelBox, LabelPlace

_LINE = re.compile(r'<line class="([^"]*)" x1="([\d.]+)%" y1="([\d.]+)%" x2="([\d.]+)%" y2="([\d.]+)%"/>')
_TEXT = re.compile(r'<text class="label[^"]*" x="([\d.]+)%" y="([\d.]+)%" dx="([-\d.]+)" dy="([-\d.]+)"[^>]*>([^<]*)<')


def lines_of(drawing: str, kind: str) -> list[LabelBox]:
    """Lines as rooms without a width or without a height."""
    found = [[float(each) for each in line[1:]] for line in _LINE.findall(drawing) if line[0] == kind]
    return [LabelBox(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)) for x1, y1, x2, y2 in found]


def labels_of(drawing: str) -> dict[str, LabelBox]:
    """LabelBox of each label by its words."""
    return {words: LabelPlace(*map(float, place)).room(words) for *place, words in _TEXT.findall(drawing)}
