"""How a program is made to fit its memory in a run: what traces and chooses, joined with what acts."""
