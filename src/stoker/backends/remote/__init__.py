"""Data workers on other machines: a gateway for each training process, and a host on each machine."""
