"""The child of a rank calls MPI_Init, in several ways. It must fail, and the rank must go on."""
import os
import subprocess
import sys
import tempfile

from mpi4py import MPI

comm = MPI.COMM_WORLD
if comm.rank == 0:
    command = [sys.executable, "-c", "from mpi4py import MPI"]
    for close_fds in [False, True]:
        # Open MPI leaves its session directory when MPI_Init fails.
        with tempfile.TemporaryDirectory() as directory:
            env = {**os.environ, "TMPDIR": directory}
            child = subprocess.run(command, close_fds=close_fds, capture_output=True, timeout=60, env=env)
        assert child.returncode != 0, child
print(f"{comm.rank}: {comm.allreduce(1)}", flush=True)
