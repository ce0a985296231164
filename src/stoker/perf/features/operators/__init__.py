"""What single operators compute and touch: FLOPs, bytes and kernels by formula."""
