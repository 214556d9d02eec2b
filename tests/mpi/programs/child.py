"""What spawn.py spawns."""

import os
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
parents = MPI.Comm.Get_parent()
if sys.argv[1:] == ["abort"]:
    world.Abort(9)
both = parents.Merge(high=True)
total = both.allreduce(both.rank)
sys.stdout.write(
    f"child {world.rank} of {world.size}: app {world.Get_attr(MPI.APPNUM)}, arguments {sys.argv[1:]}, "
    f"{parents.remote_size} parents, {both.size} together, sum {total}, in / {os.getcwd() == '/'}\n"
)
sys.stdout.flush()
both.Free()
parents.Disconnect()
