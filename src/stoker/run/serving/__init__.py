"""`stoker serve`: models from where they lie, engines for them, the policy, and the service around both."""
