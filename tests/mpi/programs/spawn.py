"""Ranks that spawn further ranks and talk to them.

spawn.py one      5 children of one command
spawn.py several  2 and 3 children of two commands, of which the first starts in /
spawn.py missing  3 children of a program that does not exist; then 2 that do
spawn.py aborting one child, which calls MPI_Abort(9) while the parents wait for it
"""

import os
import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)
python = sys.executable
child = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child.py")


def say(text):
    # Write the line in one piece, because several ranks write into the same pipe of their agent.
    sys.stdout.write(f"parent {world.rank} of {world.size}: {text}\n")
    sys.stdout.flush()


def meet(children):
    """One group of parents and children, and a sum over it."""
    both = children.Merge(high=False)
    total = both.allreduce(both.rank)
    say(f"{children.remote_size} children, {both.size} together, sum {total}")
    both.Free()
    children.Disconnect()


what = sys.argv[1]
if what == "one":
    meet(world.Spawn(python, args=[child, "a b", "", "=c"], maxprocs=5, root=0))
elif what == "several":
    info = MPI.Info.Create({"wdir": "/"})
    meet(
        world.Spawn_multiple(
            [python, python], args=[[child, "first"], [child, "second"]], maxprocs=[2, 3], info=[info, MPI.INFO_NULL]
        )
    )
elif what == "missing":
    try:
        world.Spawn("/no/such/program", maxprocs=3, root=0)
        say("spawned what does not exist")
    except MPI.Exception as error:
        say(f"refused with class {'MPI_SUCCESS' if error.Get_error_class() == 0 else 'other'}")
    say(f"{world.allreduce(1)} go on")
    meet(world.Spawn(python, args=[child], maxprocs=2, root=0))
elif what == "aborting":
    children = world.Spawn(python, args=[child, "abort"], maxprocs=1, root=0)
    children.Barrier()
