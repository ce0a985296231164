"""What `stoker deploy` comes to: designs, and what tools found of them."""
