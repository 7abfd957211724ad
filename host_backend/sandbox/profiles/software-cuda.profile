# The software GPU, which stands in for a driver in the tests.
fcntl 37          # F_OFD_SETLK: its places for contexts
fallocate
getdents64
flock             # of a checkpointer: one at a time
statfs            # its shared memory files
fchmod
unlink
