"""What held the memory of a program that ended because there was no more."""
