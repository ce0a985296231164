"""What is seen of a program that is traced: its model, its call, what a forward pass changes, who reads gradients."""
