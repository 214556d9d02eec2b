//! Initialisation and finalisation, sizes and ranks, the barrier, the abort.

use std::ffi::{c_char, c_int};

use attachment::c::{self, Outcome, run};
use attachment::{Member, Rank, Ranks, limits};

use crate::{ATTACHMENT, PMI_ERR_INVALID_ARG, PMI_ERR_INVALID_LENGTH, failed, initialize, kvs, member, spaces};

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Init(spawned: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    run(|| unsafe { c::output(spawned, PMI_ERR_INVALID_ARG, || Ok(initialize()?.is_spawned().into())) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Initialized(initialized: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    run(|| unsafe { c::output(initialized, PMI_ERR_INVALID_ARG, || Ok(member().is_ok().into())) })
}

/// Finalises PMI; succeeds if it is not initialised.
#[unsafe(no_mangle)]
extern "C" fn PMI_Finalize() -> c_int {
    run(|| {
        if member().is_ok() {
            kvs::forget_iterations();
            spaces::forget();
        }
        ATTACHMENT.finalize().map_err(failed)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_size(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { number(size, |member| Ok(c::int(member.size()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_rank(rank: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { number(rank, |member| Ok(c::int(member.rank()))) }
}

/// Returns the server's universe size, negative if the server does not know it. Slurm's libpmi returns
/// the size of the job instead.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_universe_size(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { number(size, |_| ATTACHMENT.universe_size().map_err(failed)) }
}

/// Returns the number of the rank's command. Slurm's libpmi returns the number of its job instead.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_appnum(appnum: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { number(appnum, |member| ATTACHMENT.appnum(member).map_err(failed)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_id_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { kvs::length_max(length, |maxes| maxes.kvsname) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_id(id: *mut c_char, length: c_int) -> c_int {
    // SAFETY: NULL or the caller's buffer of `length` bytes.
    run(|| unsafe { write_id(id, length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_kvs_domain_id(id: *mut c_char, length: c_int) -> c_int {
    // SAFETY: NULL or the caller's buffer of `length` bytes.
    run(|| unsafe { write_id(id, length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_clique_size(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { number(size, |member| Ok(c::int(clique(member)?.len()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_clique_ranks(ranks: *mut c_int, length: c_int) -> c_int {
    run(|| {
        c::not_null(ranks, PMI_ERR_INVALID_ARG)?;
        let clique = clique(member()?)?;
        if usize::try_from(length).unwrap_or(0) < clique.len() {
            return Err(PMI_ERR_INVALID_LENGTH);
        }
        for (at, rank) in clique.into_iter().enumerate() {
            // SAFETY: the caller's array has `length` elements, which is more than `at`.
            unsafe { ranks.add(at).write(c::int(rank)) };
        }
        Ok(())
    })
}

/// Waits for all ranks of the job, after which their puts are visible.
#[unsafe(no_mangle)]
extern "C" fn PMI_Barrier() -> c_int {
    run(|| ATTACHMENT.fence(member()?).map_err(failed))
}

/// Waits for the ranks of a group, after which they see each other's puts. `group` is an array of `count` ranks, this one
/// among them, or one of the special groups. Only ScELA's server has groups other than all ranks without a tag.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Barrier_group(group: *const c_int, count: c_int, stringtag: *const c_char) -> c_int {
    run(|| {
        let member = member()?;
        // SAFETY: NULL or a string.
        let tag = unsafe { c::text_cut(stringtag, TAG_BYTES_MAX) };
        let ranks: Ranks = match group.addr() {
            GROUP_WORLD if tag.is_none() => return ATTACHMENT.fence(member).map_err(failed),
            GROUP_SELF => return Ok(()),
            GROUP_WORLD => Ranks::range(0..member.size()),
            GROUP_NODE => clique(member)?.into_iter().map(Rank).collect(),
            _ => {
                let count = usize::try_from(count).map_err(|_| PMI_ERR_INVALID_ARG)?;
                // SAFETY: the caller's array of `count` ranks.
                let ranks = unsafe { c::array(group, count) }.iter().map(|rank| u32::try_from(*rank).map(Rank));
                ranks.collect::<Result<_, _>>().map_err(|_| PMI_ERR_INVALID_ARG)?
            }
        };
        let exist = ranks.last().is_some_and(|last| last.0 < member.size());
        if !exist || !ranks.contains(Rank(member.rank())) {
            return Err(PMI_ERR_INVALID_ARG);
        }
        ATTACHMENT.fence_group(member, &ranks, number_of(tag.unwrap_or_default())).map_err(failed)
    })
}

/// The special groups of PMI 1.2, in place of an array.
const GROUP_WORLD: usize = 0;
const GROUP_SELF: usize = 1;
const GROUP_NODE: usize = 2;

/// The bytes of a tag that count.
const TAG_BYTES_MAX: usize = 1023;

/// Returns a positive number for a tag: its FNV-1a hash, as all ranks compute it.
fn number_of(tag: &[u8]) -> u32 {
    let hash = tag.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    hash & 0x7fff_ffff
}

/// Tells the server to end the job, and exits through exit(3) as Slurm's and MPICH's libraries do:
/// stdio buffers are flushed, and exit handlers run and find PMI finalised.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Abort(exit_code: c_int, error_msg: *const c_char) -> c_int {
    c::guarded((), || {
        // SAFETY: NULL or a string.
        let message = unsafe { c::text_cut(error_msg, limits::ABORT_MESSAGE_BYTES_MAX) };
        ATTACHMENT.print_abort("PMI_Abort", exit_code, message);
        ATTACHMENT.abort(exit_code, message.unwrap_or_default());
    });
    // SAFETY: the contract of this function is that it exits.
    unsafe { libc::exit(if exit_code & 0xff == 0 { 1 } else { exit_code }) }
}

/// Stores a number in `*out`: `PMI_ERR_INVALID_ARG` for NULL, `PMI_FAIL` before `PMI_Init`.
///
/// # Safety
///
/// `out` is NULL or can be written.
unsafe fn number(out: *mut c_int, ask: impl FnOnce(&'static Member) -> Outcome<c_int>) -> c_int {
    // SAFETY: the caller guarantees it.
    run(|| unsafe { c::output(out, PMI_ERR_INVALID_ARG, || ask(member()?)) })
}

fn clique(member: &'static Member) -> Outcome<Vec<u32>> {
    ATTACHMENT.clique(member).map_err(failed)
}

/// # Safety
///
/// `id` is NULL or can be written for `length` bytes.
unsafe fn write_id(id: *mut c_char, length: c_int) -> Outcome {
    let maxes = kvs::maxes().map_err(failed)?;
    if usize::try_from(length).unwrap_or(0) < maxes.kvsname {
        return Err(PMI_ERR_INVALID_LENGTH);
    }
    // SAFETY: the caller guarantees it.
    unsafe { kvs::write_name(id, length) }
}
