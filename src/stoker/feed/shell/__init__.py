"""What carries the decisions of :mod:`stoker.feed.state` out, on processes of this machine."""
