"""What becomes of models: how integer ones compare with float, and what tools found of their designs."""
