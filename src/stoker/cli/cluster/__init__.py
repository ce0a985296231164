"""`stoker cluster`: machines that lend their processors to programs elsewhere."""
