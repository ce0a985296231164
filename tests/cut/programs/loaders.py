"""Several loaders in one step: zipped, one inside the other, one twice or two batches at the same time."""

import torch
from data import BATCH, STEPS, classifier, options, pictures, update
from torch.nn import functional
from torch.utils.data import DataLoader


def scale(pixels):
    return pixels.float() / 255 - 0.5


def zipped():
    """Semi-supervised: pseudo-labels for what has none."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    labelled, unlabelled = (
        DataLoader(pictures(), **options()),
        DataLoader(pictures(seed=1), **options(batch_size=BATCH - 1)),
    )
    for (pixels, labels), (others, _) in zip(labelled, unlabelled, strict=False):
        ours, weak = scale(pixels), scale(others)
        strong = weak.flip(3) * 0.8
        with torch.no_grad():
            sure, guessed = model(weak).softmax(1).max(1)
        both = model(torch.cat([ours, strong]))
        named = functional.cross_entropy(both[: len(ours)], labels)
        each = functional.cross_entropy(both[len(ours) :], guessed, reduction="none")
        update(named + (each * (sure > 0.4)).mean(), optimizer)


def nested():
    """Validation between the arrival of a batch and its use, and inside of a step."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    held_out = DataLoader(pictures(3 * BATCH, seed=1), **options(shuffle=False))
    for step, (pixels, labels) in enumerate(DataLoader(pictures(), **options())):
        if step % 12 == 5:
            print("before", validate(model, held_out))
        scaled = scale(pixels)
        if step % 12 == 11:
            print("inside", validate(model, held_out))
        update(functional.cross_entropy(model(scaled * 2), labels), optimizer)


@torch.no_grad()
def validate(model, loader):
    return sum(functional.cross_entropy(model(scale(pixels)), labels).item() for pixels, labels in loader)


def twice():
    """The same loader by two iterators at once, in turn."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(pictures(), **options(shuffle=False))
    for (pixels, labels), (others, _) in zip(loader, loader, strict=True):
        update(functional.cross_entropy(model(scale(pixels) + scale(others) * 0.5), labels), optimizer)


def crossed():
    """Two batches of one loader at a time: prepared in turn, and used in another order."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = iter(DataLoader(pictures(2 * STEPS * BATCH), **options()))
    for (pixels, labels), (others, names) in zip(batches, batches, strict=True):
        ours, theirs = pixels.float(), others.float()
        theirs = theirs / 255
        ours = ours / 255
        inputs = torch.cat([theirs - 0.5, ours - 0.5])
        update(functional.cross_entropy(model(inputs), torch.cat([names, labels])), optimizer)


def prepared_ahead():
    """The next batch is prepared before the current one is used."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    waiting = None
    for pixels, labels in DataLoader(pictures(), **options()):
        scaled = pixels.to(torch.float32) / 255
        following = scaled - scaled.mean(), labels
        if waiting is not None:
            update(functional.cross_entropy(model(waiting[0] / 0.25), waiting[1]), optimizer)
        waiting = following


def main():
    zipped()
    nested()
    twice()
    crossed()
    prepared_ahead()
