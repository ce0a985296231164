"""`stoker doctor`: the checks of this machine and of the settings."""
