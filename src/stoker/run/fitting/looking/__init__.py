"""What is looked at while a program is traced: its model, its call, what a forward pass changes, who reads gradients."""
