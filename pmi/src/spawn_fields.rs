//! [`SpawnError`] and the fields of a spawn's command, for the spawn readers of both protocol versions.

use std::collections::BTreeMap;
use std::str::FromStr;

use thiserror::Error;

use crate::request::{SpawnCommand, SpawnRequestError};
use crate::wire::fields;
use crate::wire::numbered::{NumberedPairs, into_list};

/// Why a spawn is refused. The text contains no blank: a rank receives it as PMI-1's `msg=`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum SpawnError {
    /// The spawn exceeds a bound.
    #[error(transparent)]
    Request(#[from] SpawnRequestError),
    /// A field is missing.
    #[error("{0}_missing")]
    Missing(&'static str),
    /// A field is not a number.
    #[error("{0}_is_not_a_number")]
    NotANumber(&'static str),
    /// Numbered fields have gaps, or their number differs from the announced one.
    #[error("{0}_incomplete")]
    Incomplete(&'static str),
    /// `spawnssofar` does not count the blocks, or `totspawns` changed.
    #[error("blocks_out_of_order")]
    OutOfOrder,
    /// The multi-line request is not a spawn.
    #[error("unsupported")]
    Unsupported,
}

/// Keys and values, such as preputs and infos.
pub(crate) type KeyValues = Vec<(Vec<u8>, Vec<u8>)>;

/// The fields of one command that have been read so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandFields {
    pub(crate) program: Option<Vec<u8>>,
    pub(crate) nprocs: Option<u32>,
    /// The announced number of arguments.
    pub(crate) args_announced: Option<usize>,
    pub(crate) args: BTreeMap<u32, Vec<u8>>,
    pub(crate) infos: NumberedPairs,
}

impl CommandFields {
    /// Returns the command once all of its fields have been read. `program` and `nprocs` are the names of those fields
    /// in this version.
    pub(crate) fn into_command(self, program: &'static str, nprocs: &'static str) -> Result<SpawnCommand, SpawnError> {
        Ok(SpawnCommand {
            program: self.program.ok_or(SpawnError::Missing(program))?,
            nprocs: self.nprocs.ok_or(SpawnError::Missing(nprocs))?,
            args: into_list(self.args, self.args_announced).ok_or(SpawnError::Incomplete("arguments"))?,
            info: self.infos.into_list().ok_or(SpawnError::Incomplete("infos"))?,
        })
    }
}

/// Adds a preput, in place of an earlier one of the same key. Returns the earlier value.
pub(crate) fn add_preput(preputs: &mut KeyValues, (key, value): (Vec<u8>, Vec<u8>)) -> Option<Vec<u8>> {
    match preputs.iter_mut().find(|known| known.0 == key) {
        Some(known) => Some(std::mem::replace(&mut known.1, value)),
        None => {
            preputs.push((key, value));
            None
        }
    }
}

/// Reads the number in the field `name`.
pub(crate) fn number<T: FromStr>(name: &'static str, value: &[u8]) -> Result<T, SpawnError> {
    fields::number(fields::trim(value)).ok_or(SpawnError::NotANumber(name))
}

/// Returns the number that follows `prefix` in a field's name.
pub(crate) fn index_behind(prefix: &[u8], name: &[u8]) -> Option<u32> {
    name.strip_prefix(prefix).and_then(fields::number)
}
