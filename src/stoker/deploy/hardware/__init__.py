"""What tools say of a design: equal to the law on every output, its resources, its clock."""
