//! `mcmd=spawn`: the one request of PMI-1 that takes several lines.
//!
//! One block per command, from `mcmd=spawn` to `endcmd`; the request is complete with the block
//! whose `spawnssofar` is its `totspawns`. A value goes to the end of its line. Fields may come in
//! any order; MPICH <= 4.0 repeats the preputs in every block, MPICH >= 4.1 has them in the first.

use std::collections::BTreeMap;

use thiserror::Error;

use crate::limits::{SPAWN_ARGS_MAX, SPAWN_BYTES_MAX, SPAWN_INFO_MAX, SPAWN_PREPUTS_MAX};
use crate::request::{SpawnCommand, SpawnRequest, SpawnRequestError};
use crate::wire::fields;
use crate::wire::numbered::{NumberedPairs, into_list};

/// Why a spawn is refused. The text holds no blank: it is what the rank is sent as `msg=`.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum SpawnError {
    /// It breaks a bound.
    #[error(transparent)]
    Order(#[from] SpawnRequestError),
    /// A field is missing.
    #[error("{0}_missing")]
    Missing(&'static str),
    /// A field is no number.
    #[error("{0}_is_not_a_number")]
    NotANumber(&'static str),
    /// Numbered fields have gaps, or are not as many as was said.
    #[error("{0}_incomplete")]
    Incomplete(&'static str),
    /// `spawnssofar` does not count the blocks, or `totspawns` changed.
    #[error("blocks_out_of_order")]
    OutOfOrder,
    /// The block is not a spawn.
    #[error("unsupported")]
    Unsupported,
}

/// A multi-line request, being read.
///
/// After an error it reads on, keeping nothing, until the request is complete: the client does not
/// read before it has written everything.
#[derive(Clone, Debug, Default)]
pub struct SpawnReader {
    /// The name after `mcmd=` of the first block.
    name: Vec<u8>,
    block: Option<Block>,
    commands: Vec<SpawnCommand>,
    preputs: Vec<(Vec<u8>, Vec<u8>)>,
    total: Option<u32>,
    blocks_done: u32,
    /// Of `commands` and `preputs`.
    bytes_done: usize,
    error: Option<SpawnError>,
}

/// One block, being read.
#[derive(Clone, Debug, Default)]
struct Block {
    nprocs: Option<u32>,
    program: Option<Vec<u8>>,
    total: Option<u32>,
    so_far: Option<u32>,
    args_said: Option<usize>,
    args: BTreeMap<u32, Vec<u8>>,
    preputs: NumberedPairs,
    infos: NumberedPairs,
    bytes: usize,
}

impl SpawnReader {
    /// Whether a line begins a block, and thus a request when none is being read.
    pub fn begins(line: &[u8]) -> bool {
        line.starts_with(b"mcmd=")
    }

    /// Whether a line ends the request although it is not complete: the client has given it up.
    pub fn is_aborted_by(line: &[u8]) -> bool {
        line.starts_with(b"cmd=")
    }

    /// The name of the request, `spawn` if it is one.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether a block has begun and not ended: the next line belongs to it whatever it is.
    pub fn is_inside_block(&self) -> bool {
        self.block.is_some()
    }

    /// Takes a line; `Some` when it was the request's last.
    pub fn read(&mut self, line: &[u8]) -> Option<Result<SpawnRequest, SpawnError>> {
        if let Some(name) = line.strip_prefix(b"mcmd=") {
            let name = fields::trim(name);
            if self.block.is_some() || (self.blocks_done > 0 && self.name != name) {
                self.fail(SpawnError::OutOfOrder);
            }
            if self.blocks_done == 0 {
                self.name = name[..name.len().min(crate::limits::ECHO_BYTES_MAX)].to_vec();
            }
            if name != b"spawn" {
                self.fail(SpawnError::Unsupported);
            }
            self.block = Some(Block::default());
        } else if fields::trim(line) == b"endcmd" {
            return self.end_block();
        } else if let Some(at) = line.iter().position(|&byte| byte == b'=') {
            let (name, value) = (fields::trim(&line[..at]), &line[at + 1..]);
            self.field(name, value);
        }
        None
    }

    fn fail(&mut self, error: SpawnError) {
        self.error.get_or_insert(error);
        self.commands = Vec::new();
        self.preputs = Vec::new();
    }

    fn field(&mut self, name: &[u8], value: &[u8]) {
        let failed = self.error.is_some();
        let Some(block) = &mut self.block else { return };
        let result = match name {
            // Needed to find the end, whatever else is wrong.
            b"totspawns" => number("totspawns", value).map(|total| block.total = Some(total)),
            b"spawnssofar" => number("spawnssofar", value).map(|so_far| block.so_far = Some(so_far)),
            _ if failed => Ok(()),
            _ => block.field(name, value, SPAWN_BYTES_MAX - self.bytes_done),
        };
        if let Err(error) = result {
            self.fail(error);
        }
        if let (Some(block), true) = (&mut self.block, self.error.is_some()) {
            *block = Block { total: block.total, so_far: block.so_far, ..Block::default() };
        }
    }

    fn end_block(&mut self) -> Option<Result<SpawnRequest, SpawnError>> {
        let block = self.block.take()?;
        self.blocks_done = self.blocks_done.saturating_add(1);
        let total = block.total.unwrap_or(1);
        let so_far = block.so_far.unwrap_or(self.blocks_done);
        if so_far != self.blocks_done || *self.total.get_or_insert(total) != total {
            self.fail(SpawnError::OutOfOrder);
        }
        if self.error.is_none()
            && let Err(error) = self.add(block)
        {
            self.fail(error);
        }
        if so_far < total {
            return None;
        }
        let order =
            SpawnRequest { commands: std::mem::take(&mut self.commands), preputs: std::mem::take(&mut self.preputs) };
        Some(match self.error {
            Some(error) => Err(error),
            None => order.check().map(|()| order).map_err(SpawnError::Order),
        })
    }

    /// Adds a complete block as a command.
    fn add(&mut self, block: Block) -> Result<(), SpawnError> {
        if self.commands.len() == crate::limits::SPAWN_COMMANDS_MAX {
            return Err(SpawnRequestError::Commands.into());
        }
        let program = block.program.ok_or(SpawnError::Missing("execname"))?;
        let nprocs = block.nprocs.ok_or(SpawnError::Missing("nprocs"))?;
        let args = into_list(block.args, block.args_said).ok_or(SpawnError::Incomplete("arguments"))?;
        let info = block.infos.into_list().ok_or(SpawnError::Incomplete("infos"))?;
        let preputs = block.preputs.into_list().ok_or(SpawnError::Incomplete("preputs"))?;
        let pair_bytes = |(key, value): &(Vec<u8>, Vec<u8>)| key.len() + value.len();
        let args_bytes: usize = args.iter().map(Vec::len).sum();
        self.bytes_done += program.len() + args_bytes + info.iter().map(pair_bytes).sum::<usize>();
        self.commands.push(SpawnCommand { program, args, nprocs, info });
        for preput in preputs {
            match self.preputs.iter_mut().find(|known| known.0 == preput.0) {
                Some(known) => {
                    self.bytes_done = self.bytes_done + preput.1.len() - known.1.len();
                    *known = preput;
                }
                None => {
                    self.bytes_done += pair_bytes(&preput);
                    self.preputs.push(preput);
                }
            }
        }
        if self.preputs.len() > SPAWN_PREPUTS_MAX {
            return Err(SpawnRequestError::Preputs.into());
        }
        if self.bytes_done > SPAWN_BYTES_MAX {
            return Err(SpawnRequestError::Bytes.into());
        }
        Ok(())
    }
}

impl Block {
    fn field(&mut self, name: &[u8], value: &[u8], bytes_max: usize) -> Result<(), SpawnError> {
        let numbered = [
            (&b"arg"[..], &mut self.args, SPAWN_ARGS_MAX, SpawnRequestError::Args),
            (b"preput_key_", &mut self.preputs.keys, SPAWN_PREPUTS_MAX, SpawnRequestError::Preputs),
            (b"preput_val_", &mut self.preputs.values, SPAWN_PREPUTS_MAX, SpawnRequestError::Preputs),
            (b"info_key_", &mut self.infos.keys, SPAWN_INFO_MAX, SpawnRequestError::Info),
            (b"info_val_", &mut self.infos.values, SPAWN_INFO_MAX, SpawnRequestError::Info),
        ];
        match name {
            b"nprocs" => self.nprocs = Some(number("nprocs", value)?),
            b"argcnt" => self.args_said = Some(number("argcnt", value)?),
            b"preput_num" => self.preputs.said = Some(number("preput_num", value)?),
            b"info_num" => self.infos.said = Some(number("info_num", value)?),
            b"execname" => {
                self.bytes += value.len();
                self.program = Some(value.to_vec());
            }
            _ => {
                for (prefix, list, entries_max, too_many) in numbered {
                    let index = name.strip_prefix(prefix).and_then(fields::number);
                    let Some(index) = index else { continue };
                    self.bytes += value.len();
                    list.insert(index, value.to_vec());
                    if list.len() > entries_max {
                        return Err(too_many.into());
                    }
                }
            }
        }
        if self.bytes > bytes_max { Err(SpawnRequestError::Bytes.into()) } else { Ok(()) }
    }
}

fn number<T: std::str::FromStr>(name: &'static str, value: &[u8]) -> Result<T, SpawnError> {
    fields::number(fields::trim(value)).ok_or(SpawnError::NotANumber(name))
}

/// Appends an order as MPICH <= 4.0 writes it. No byte string may hold a newline.
pub fn write_spawn(order: &SpawnRequest, out: &mut Vec<u8>) {
    let mut line = |name: String, value: &[u8]| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(value);
        out.push(b'\n');
    };
    for (index, command) in order.commands.iter().enumerate() {
        line("mcmd=spawn".into(), b"");
        line(format!("nprocs={}", command.nprocs), b"");
        line("execname=".into(), &command.program);
        line(format!("totspawns={}", order.commands.len()), b"");
        line(format!("spawnssofar={}", index + 1), b"");
        for (number, arg) in command.args.iter().enumerate() {
            line(format!("arg{}=", number + 1), arg);
        }
        line(format!("argcnt={}", command.args.len()), b"");
        line(format!("preput_num={}", order.preputs.len()), b"");
        for (number, (key, value)) in order.preputs.iter().enumerate() {
            line(format!("preput_key_{number}="), key);
            line(format!("preput_val_{number}="), value);
        }
        line(format!("info_num={}", command.info.len()), b"");
        for (number, (key, value)) in command.info.iter().enumerate() {
            line(format!("info_key_{number}="), key);
            line(format!("info_val_{number}="), value);
        }
        line("endcmd".into(), b"");
    }
}

#[cfg(test)]
mod tests;
