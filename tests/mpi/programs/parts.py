"""Prints how many ranks share each part of the node, and each kind of device."""

from mpi4py import MPI

world = MPI.COMM_WORLD
for part in ["hwthread", "core", "l1cache", "l2cache", "l3cache", "numanode", "package", "machine", "eth0", "pci:0000:00:03.0", "gpu"]:
    comm = world.Split_type(MPI.COMM_TYPE_HW_GUIDED, world.rank, MPI.Info.Create({"mpi_hw_resource_type": part}))
    size = comm.Get_size() if comm != MPI.COMM_NULL else 0
    print(f"{part} {world.rank}: {size}", flush=True)
