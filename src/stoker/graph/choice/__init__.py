"""Which calls are worth moving: costs, the minimum cut, its trial, and the reasons why others stay. Pure."""
