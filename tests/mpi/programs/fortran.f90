! Sends the same messages by mpif.h's names and by those of mpi_f08, so that each must be counted once.
module old
contains
   subroutine send_old(rank, size)
      implicit none
      include 'mpif.h'
      integer, intent(in) :: rank, size
      integer :: error, next, before, requests(2), status(MPI_STATUS_SIZE), alone, counts(size), places(size), i
      integer :: values(16 * size), arrived(16 * size)
      next = mod(rank + 1, size)
      before = mod(rank + size - 1, size)
      values = rank
      ! 10 bytes by sendrecv, 12 by isend, 3 * 8 by a request that is started three times.
      call MPI_SENDRECV(values, 10, MPI_BYTE, next, 0, arrived, 10, MPI_BYTE, before, 0, MPI_COMM_WORLD, status, error)
      call MPI_IRECV(arrived, 3, MPI_INTEGER, before, 1, MPI_COMM_WORLD, requests(1), error)
      call MPI_ISEND(values, 3, MPI_INTEGER, next, 1, MPI_COMM_WORLD, requests(2), error)
      call MPI_WAITALL(2, requests, MPI_STATUSES_IGNORE, error)
      call MPI_RECV_INIT(arrived, 8, MPI_BYTE, before, 2, MPI_COMM_WORLD, requests(1), error)
      call MPI_SEND_INIT(values, 8, MPI_BYTE, next, 2, MPI_COMM_WORLD, requests(2), error)
      do i = 1, 3
         call MPI_STARTALL(2, requests, error)
         call MPI_WAITALL(2, requests, MPI_STATUSES_IGNORE, error)
      end do
      call MPI_REQUEST_FREE(requests(1), error)
      call MPI_REQUEST_FREE(requests(2), error)
      ! 20 bytes to itself, by its rank in a communicator of its own.
      call MPI_COMM_SPLIT(MPI_COMM_WORLD, rank, 0, alone, error)
      call MPI_SENDRECV(values, 5, MPI_INTEGER, 0, 3, arrived, 5, MPI_INTEGER, MPI_ANY_SOURCE, 3, alone, status, error)
      call MPI_COMM_FREE(alone, error)
      ! Each rank sends one integer to each other one.
      do i = 1, size
         counts(i) = 1
         places(i) = i - 1
      end do
      call MPI_ALLTOALLV(MPI_IN_PLACE, 0, 0, MPI_INTEGER, arrived, counts, places, MPI_INTEGER, MPI_COMM_WORLD, error)
   end subroutine
end module

module new
contains
   subroutine send_new(rank, size)
      use mpi_f08
      implicit none
      integer, intent(in) :: rank, size
      integer :: next, before
      integer :: values(16), arrived(16)
      type(MPI_Request) :: requests(2)
      next = mod(rank + 1, size)
      before = mod(rank + size - 1, size)
      values = rank
      call MPI_Irecv(arrived, 7, MPI_BYTE, before, 4, MPI_COMM_WORLD, requests(1))
      call MPI_Isend(values, 7, MPI_BYTE, next, 4, MPI_COMM_WORLD, requests(2))
      call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE)
      call MPI_Sendrecv(values, 1, MPI_INTEGER, next, 5, arrived, 1, MPI_INTEGER, before, 5, MPI_COMM_WORLD, &
                        MPI_STATUS_IGNORE)
      call MPI_Barrier(MPI_COMM_WORLD)
   end subroutine
end module

program fortran
   use old
   use new
   implicit none
   include 'mpif.h'
   integer :: error, rank, size
   call MPI_INIT(error)
   call MPI_COMM_RANK(MPI_COMM_WORLD, rank, error)
   call MPI_COMM_SIZE(MPI_COMM_WORLD, size, error)
   call send_old(rank, size)
   call send_new(rank, size)
   call MPI_FINALIZE(error)
end program
