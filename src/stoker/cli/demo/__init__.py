"""`stoker demo`: one ordinary program under plain python and under `stoker run`, on one screen."""
