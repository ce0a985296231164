"""Carries out the decisions of :mod:`stoker.feed.state` with processes of this machine."""
