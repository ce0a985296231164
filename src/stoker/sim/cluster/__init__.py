"""A cluster of jobs on a virtual clock, under the allocator's own policy and those it is compared with."""
