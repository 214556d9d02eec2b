"""The child of a rank calls MPI_Init, in several ways. It must fail or be killed, and the rank must go on."""
import subprocess
import sys

from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    command = [sys.executable, "-c", "from mpi4py import MPI"]
    for close_fds in [False, True]:
        child = subprocess.run(command, close_fds=close_fds, capture_output=True, timeout=60)
        expected = [int(code) for code in sys.argv[1:]]
        assert child.returncode in expected if expected else child.returncode != 0, child
print(f"{comm.rank}: {comm.allreduce(1)}", flush=True)
