//! The functions of MPI, by their names in C and in Fortran.
//!
//! Each calls MPI's own function of the same name and counts what the program has sent. An exception of C++, which an error handler
//! of the program may throw, passes through. Compilers add different things to the
//! names of Fortran; libraries add `_f08` and `_f08ts` to the specific names behind the module mpi_f08.

use std::ffi::{CStr, c_int};

use crate::arguments::{Language, Word};
use crate::mpi::{Real, call};
use crate::record::{self, Effect, Outermost};

/// The result in C if there is no MPI library in the process: MPI_ERR_OTHER in all of them is another positive number.
const NO_LIBRARY: c_int = 16;

/// Makes a name from its bytes, which end with a NUL.
const fn name(bytes: &'static [u8]) -> &'static CStr {
    match CStr::from_bytes_with_nul(bytes) {
        Ok(name) => name,
        Err(_) => panic!("a name has no NUL"),
    }
}

/// Defines a function of C.
macro_rules! in_c {
    ($name:expr, $language:ident, ($($argument:ident)*), $effect:expr) => {
        const _: () = {
            /// Calls MPI's function of this name and counts.
            #[unsafe(export_name = $name)]
            unsafe extern "C-unwind" fn function($($argument: Word),*) -> c_int {
                static REAL: Real = Real::new(name(concat!($name, "\0").as_bytes()));
                static EFFECT: Effect = $effect;
                let Some(real) = REAL.get() else { return NO_LIBRARY };
                let Some(_outermost) = Outermost::begin() else { return call!(real, c_int; $($argument),*) };
                let words = [$($argument),*];
                record::before(&EFFECT, &words, Language::$language);
                let result = call!(real, c_int; $($argument),*);
                if result == 0 {
                    record::after(&EFFECT, &words, Language::$language);
                }
                result
            }
        };
    };
}

/// Defines a subroutine of Fortran, whose last argument is the error code. It is optional in mpi_f08; without it, an error ends
/// the program.
macro_rules! in_fortran {
    ($name:expr, $language:ident, ($($argument:ident)*), $effect:expr) => {
        const _: () = {
            /// Calls MPI's subroutine of this name and counts.
            #[unsafe(export_name = $name)]
            unsafe extern "C-unwind" fn function($($argument: Word,)* error: Word) {
                static REAL: Real = Real::new(name(concat!($name, "\0").as_bytes()));
                static EFFECT: Effect = $effect;
                let Some(real) = REAL.get() else { return };
                let Some(_outermost) = Outermost::begin() else { return call!(real, (); $($argument,)* error) };
                let words: &[Word] = &[$($argument),*];
                record::before(&EFFECT, words, Language::$language);
                call!(real, (); $($argument,)* error);
                // SAFETY: it is null or the address of an integer that the subroutine has set.
                if error == 0 || unsafe { *(error as *const c_int) } == 0 {
                    record::after(&EFFECT, words, Language::$language);
                }
            }
        };
    };
}

/// Defines a function by all of its names.
macro_rules! functions {
    ($($name:literal $lower:literal $upper:literal $arguments:tt $effect:ident $act:ident;)*) => {$(
        in_c!(concat!("MPI_", $name), C, $arguments, Effect::$effect(record::$act));
        in_c!(concat!("MPI_", $name, "_c"), LargeC, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!("mpi_", $lower, "_"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!("mpi_", $lower, "__"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!("mpi_", $lower), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!("MPI_", $upper), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!("mpi_", $lower, "_f08_"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!("mpi_", $lower, "_f08ts_"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!("mpi_", $lower, "_f08ts_large_"), LargeFortran, $arguments, Effect::$effect(record::$act));
    )*};
}

/// Defines a collective operation with its nonblocking and its persistent variant.
macro_rules! collectives {
    ($($name:literal $lower:literal $upper:literal ($($argument:ident)*) $act:ident;)*) => {$(
        functions! {
            $name $lower $upper ($($argument)*) Messages $act;
        }
        collectives!(@variants $name $lower $upper ($($argument)*) $act);
    )*};
    (@variants $name:literal $lower:literal $upper:literal ($($argument:ident)*) $act:ident) => {
        in_c!(concat!("MPI_I", $lower), C, ($($argument)* request), Effect::Messages(record::$act));
        in_c!(concat!("MPI_I", $lower, "_c"), LargeC, ($($argument)* request), Effect::Messages(record::$act));
        in_c!(concat!("MPI_", $name, "_init"), C, ($($argument)* info request), Effect::Request(record::$act));
        in_c!(concat!("MPI_", $name, "_init_c"), LargeC, ($($argument)* info request), Effect::Request(record::$act));
        collectives!(@fortran "mpi_i" $lower "" ($($argument)* request) Messages $act);
        collectives!(@fortran "mpi_" $lower "_init" ($($argument)* info request) Request $act);
        in_fortran!(concat!("MPI_I", $upper), Fortran, ($($argument)* request), Effect::Messages(record::$act));
        in_fortran!(concat!("MPI_", $upper, "_INIT"), Fortran, ($($argument)* info request), Effect::Request(record::$act));
    };
    (@fortran $before:literal $lower:literal $after:literal $arguments:tt $effect:ident $act:ident) => {
        in_fortran!(concat!($before, $lower, $after, "_"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!($before, $lower, $after, "__"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!($before, $lower, $after), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!($before, $lower, $after, "_f08_"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(concat!($before, $lower, $after, "_f08ts_"), Fortran, $arguments, Effect::$effect(record::$act));
        in_fortran!(
            concat!($before, $lower, $after, "_f08ts_large_"),
            LargeFortran,
            $arguments,
            Effect::$effect(record::$act)
        );
    };
}

functions! {
    "Finalize" "finalize" "FINALIZE" () Before finalize;
    "Comm_free" "comm_free" "COMM_FREE" (comm) Before free_comm;
    "Comm_disconnect" "comm_disconnect" "COMM_DISCONNECT" (comm) Before free_comm;
    "Win_free" "win_free" "WIN_FREE" (win) Before free_win;
    "Request_free" "request_free" "REQUEST_FREE" (request) Before free_request;
    "Start" "start" "START" (request) After start;
    "Startall" "startall" "STARTALL" (count requests) After start_all;

    "Send" "send" "SEND" (buf count datatype dest tag comm) Message send_now;
    "Ssend" "ssend" "SSEND" (buf count datatype dest tag comm) Message send_now;
    "Bsend" "bsend" "BSEND" (buf count datatype dest tag comm) Message send_now;
    "Rsend" "rsend" "RSEND" (buf count datatype dest tag comm) Message send_now;
    "Isend" "isend" "ISEND" (buf count datatype dest tag comm request) Message send_now;
    "Issend" "issend" "ISSEND" (buf count datatype dest tag comm request) Message send_now;
    "Ibsend" "ibsend" "IBSEND" (buf count datatype dest tag comm request) Message send_now;
    "Irsend" "irsend" "IRSEND" (buf count datatype dest tag comm request) Message send_now;
    "Send_init" "send_init" "SEND_INIT" (buf count datatype dest tag comm request) Request send;
    "Ssend_init" "ssend_init" "SSEND_INIT" (buf count datatype dest tag comm request) Request send;
    "Bsend_init" "bsend_init" "BSEND_INIT" (buf count datatype dest tag comm request) Request send;
    "Rsend_init" "rsend_init" "RSEND_INIT" (buf count datatype dest tag comm request) Request send;
    "Psend_init" "psend_init" "PSEND_INIT"
        (buf partitions count datatype dest tag comm info request) Request partitioned_send;
    "Sendrecv" "sendrecv" "SENDRECV"
        (sendbuf sendcount sendtype dest sendtag recvbuf recvcount recvtype source recvtag comm status) Messages sendrecv;
    "Isendrecv" "isendrecv" "ISENDRECV"
        (sendbuf sendcount sendtype dest sendtag recvbuf recvcount recvtype source recvtag comm request) Messages sendrecv;
    "Sendrecv_replace" "sendrecv_replace" "SENDRECV_REPLACE"
        (buf count datatype dest sendtag source recvtag comm status) Messages sendrecv_replace;
    "Isendrecv_replace" "isendrecv_replace" "ISENDRECV_REPLACE"
        (buf count datatype dest sendtag source recvtag comm request) Messages sendrecv_replace;

    "Put" "put" "PUT" (addr count datatype rank disp target_count target_datatype win) Messages put;
    "Rput" "rput" "RPUT" (addr count datatype rank disp target_count target_datatype win request) Messages put;
    "Get" "get" "GET" (addr count datatype rank disp target_count target_datatype win) Messages get;
    "Rget" "rget" "RGET" (addr count datatype rank disp target_count target_datatype win request) Messages get;
    "Accumulate" "accumulate" "ACCUMULATE"
        (addr count datatype rank disp target_count target_datatype op win) Messages accumulate;
    "Raccumulate" "raccumulate" "RACCUMULATE"
        (addr count datatype rank disp target_count target_datatype op win request) Messages accumulate;
    "Get_accumulate" "get_accumulate" "GET_ACCUMULATE"
        (addr count datatype result result_count result_datatype rank disp target_count target_datatype op win)
        Messages get_accumulate;
    "Rget_accumulate" "rget_accumulate" "RGET_ACCUMULATE"
        (addr count datatype result result_count result_datatype rank disp target_count target_datatype op win request)
        Messages get_accumulate;
    "Fetch_and_op" "fetch_and_op" "FETCH_AND_OP" (addr result datatype rank disp op win) Messages fetch_and_op;
    "Compare_and_swap" "compare_and_swap" "COMPARE_AND_SWAP"
        (addr compare result datatype rank disp win) Messages compare_and_swap;
}

collectives! {
    "Barrier" "barrier" "BARRIER" (comm) barrier;
    "Bcast" "bcast" "BCAST" (buf count datatype root comm) bcast;
    "Gather" "gather" "GATHER" (sendbuf sendcount sendtype recvbuf recvcount recvtype root comm) gather;
    "Gatherv" "gatherv" "GATHERV"
        (sendbuf sendcount sendtype recvbuf recvcounts displs recvtype root comm) gatherv;
    "Scatter" "scatter" "SCATTER" (sendbuf sendcount sendtype recvbuf recvcount recvtype root comm) scatter;
    "Scatterv" "scatterv" "SCATTERV"
        (sendbuf sendcounts displs sendtype recvbuf recvcount recvtype root comm) scatterv;
    "Allgather" "allgather" "ALLGATHER"
        (sendbuf sendcount sendtype recvbuf recvcount recvtype comm) allgather;
    "Allgatherv" "allgatherv" "ALLGATHERV"
        (sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm) allgatherv;
    "Alltoall" "alltoall" "ALLTOALL" (sendbuf sendcount sendtype recvbuf recvcount recvtype comm) alltoall;
    "Alltoallv" "alltoallv" "ALLTOALLV"
        (sendbuf sendcounts sdispls sendtype recvbuf recvcounts rdispls recvtype comm) alltoallv;
    "Alltoallw" "alltoallw" "ALLTOALLW"
        (sendbuf sendcounts sdispls sendtypes recvbuf recvcounts rdispls recvtypes comm) alltoallw;
    "Reduce" "reduce" "REDUCE" (sendbuf recvbuf count datatype op root comm) reduce;
    "Allreduce" "allreduce" "ALLREDUCE" (sendbuf recvbuf count datatype op comm) allreduce;
    "Reduce_scatter" "reduce_scatter" "REDUCE_SCATTER"
        (sendbuf recvbuf recvcounts datatype op comm) reduce_scatter;
    "Reduce_scatter_block" "reduce_scatter_block" "REDUCE_SCATTER_BLOCK"
        (sendbuf recvbuf recvcount datatype op comm) reduce_scatter_block;
    "Scan" "scan" "SCAN" (sendbuf recvbuf count datatype op comm) scan;
    "Exscan" "exscan" "EXSCAN" (sendbuf recvbuf count datatype op comm) scan;
    "Neighbor_allgather" "neighbor_allgather" "NEIGHBOR_ALLGATHER"
        (sendbuf sendcount sendtype recvbuf recvcount recvtype comm) neighbor_allgather;
    "Neighbor_allgatherv" "neighbor_allgatherv" "NEIGHBOR_ALLGATHERV"
        (sendbuf sendcount sendtype recvbuf recvcounts displs recvtype comm) neighbor_allgatherv;
    "Neighbor_alltoall" "neighbor_alltoall" "NEIGHBOR_ALLTOALL"
        (sendbuf sendcount sendtype recvbuf recvcount recvtype comm) neighbor_allgather;
    "Neighbor_alltoallv" "neighbor_alltoallv" "NEIGHBOR_ALLTOALLV"
        (sendbuf sendcounts sdispls sendtype recvbuf recvcounts rdispls recvtype comm) neighbor_alltoallv;
    "Neighbor_alltoallw" "neighbor_alltoallw" "NEIGHBOR_ALLTOALLW"
        (sendbuf sendcounts sdispls sendtypes recvbuf recvcounts rdispls recvtypes comm) neighbor_alltoallw;
}
