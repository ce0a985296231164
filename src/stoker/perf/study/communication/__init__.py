"""What published steps on several GPUs say of the links between them."""
