"""What published steps on several GPUs show about the links between them."""
