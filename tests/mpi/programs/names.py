"""Groups that find each other by a published name.

names.py groups      ranks 0 and 1 accept, the others connect
names.py namespaces  all accept; a caller spawned by them connects, which knows but the name
names.py caller      that caller
"""

import os
import sys

from mpi4py import MPI

SERVICE = "scela test: a name"
world = MPI.COMM_WORLD
world.Set_errhandler(MPI.ERRORS_RETURN)


def say(who, text):
    sys.stdout.write(f"{who} {world.rank}: {text}\n")
    sys.stdout.flush()


def talk(who, other, high):
    both = other.Merge(high=high)
    say(who, f"{other.remote_size} met, {both.size} together, sum {both.allreduce(1)}")
    both.Free()
    other.Disconnect()


def is_published():
    try:
        MPI.Lookup_name(SERVICE)
        return True
    except MPI.Exception:
        return False


def accept(group, ready):
    port = None
    if group.rank == 0:
        port = MPI.Open_port()
        MPI.Publish_name(SERVICE, port)
    ready()
    talk("server", group.Accept(port, root=0), False)
    if group.rank == 0:
        MPI.Unpublish_name(SERVICE, port)
        MPI.Close_port(port)


def connect(group):
    port = MPI.Lookup_name(SERVICE) if group.rank == 0 else None
    talk("client", group.Connect(port, root=0), True)


what = sys.argv[1]
if what == "groups":
    if world.rank == 0:
        say("server", f"published {is_published()}")
    group = world.Split(int(world.rank < 2), world.rank)
    world.Barrier()
    if world.rank < 2:
        accept(group, world.Barrier)
    else:
        world.Barrier()
        connect(group)
    world.Barrier()
    if world.rank == world.size - 1:
        say("client", f"published {is_published()}")
elif what == "namespaces":

    def spawn():
        world.Spawn(sys.executable, args=[os.path.abspath(__file__), "caller"], maxprocs=3, root=0).Disconnect()

    accept(world, spawn)
elif what == "caller":
    MPI.Comm.Get_parent().Disconnect()
    connect(world)
