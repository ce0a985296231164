"""What is seen of a program while it is traced: its model, its call, what forward passes change, who reads gradients."""
