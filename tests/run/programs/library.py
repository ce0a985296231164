"""Uses stoker itself, in the three ways there are: says whose iterators it gets, and what they give."""

import sys

import torch.utils.data

import stoker

if __name__ == "__main__":

    def show(name, loader):
        iterator = iter(loader)
        print(name, type(iterator).__module__, [batch.tolist() for batch in iterator])

    data = list(range(4))
    own = stoker.DataLoader(data, batch_size=2, num_workers=1)
    show("own", own)
    show("wrapped", stoker.wrap(torch.utils.data.DataLoader(data, batch_size=2, num_workers=1)))
    with stoker.feeding():
        show("block", torch.utils.data.DataLoader(data, batch_size=2, num_workers=1))
    found = own.explain()
    print(f"{found.tier}: {found.reason}", file=sys.stderr)
