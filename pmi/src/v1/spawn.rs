//! `mcmd=spawn`: the one request of PMI-1 that takes several lines.
//!
//! A block per command goes from `mcmd=spawn` to `endcmd`. The request is complete with the block whose `spawnssofar`
//! equals its `totspawns`. A value goes to the end of its line. Fields may come in any order; MPICH <= 4.0 repeats the
//! preputs in every block, MPICH >= 4.1 sends them in the first.

use crate::limits::{
    ECHO_BYTES_MAX, SPAWN_ARGS_MAX, SPAWN_BYTES_MAX, SPAWN_COMMANDS_MAX, SPAWN_INFO_MAX, SPAWN_PREPUTS_MAX,
};
use crate::request::{SpawnCommand, SpawnRequest, SpawnRequestError};
pub use crate::spawn_fields::SpawnError;
use crate::spawn_fields::{CommandFields, KeyValues, add_preput, index_behind, number};
use crate::wire::fields;
use crate::wire::numbered::NumberedPairs;

/// A multi-line request of which some lines have been read.
///
/// After an error it reads on without storing anything until the request is complete: the client does not read before
/// it has written everything.
#[derive(Clone, Debug, Default)]
pub struct SpawnReader {
    /// The name after `mcmd=` of the first block.
    name: Vec<u8>,
    block: Option<Block>,
    commands: Vec<SpawnCommand>,
    preputs: KeyValues,
    total: Option<u32>,
    blocks_done: u32,
    /// The length of `commands` and `preputs`.
    bytes_done: usize,
    error: Option<SpawnError>,
}

/// The fields of a block that have been read so far.
#[derive(Clone, Debug, Default)]
struct Block {
    command: CommandFields,
    preputs: NumberedPairs,
    total: Option<u32>,
    so_far: Option<u32>,
    bytes: usize,
}

impl SpawnReader {
    /// Whether a line begins a block, and so a request if none is being read.
    pub fn begins(line: &[u8]) -> bool {
        line.starts_with(b"mcmd=")
    }

    /// Whether a line ends an incomplete request: the client has aborted it.
    pub fn is_aborted_by(line: &[u8]) -> bool {
        line.starts_with(b"cmd=")
    }

    /// Returns the request's name: `spawn` for a spawn.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Whether a block has begun and not ended, so that the next line belongs to it whatever it is.
    pub fn is_inside_block(&self) -> bool {
        self.block.is_some()
    }

    /// Reads a line. Returns the request, or why it is refused, with its last line.
    pub fn read(&mut self, line: &[u8]) -> Option<Result<SpawnRequest, SpawnError>> {
        if let Some(name) = line.strip_prefix(b"mcmd=") {
            let name = fields::trim(name);
            if self.block.is_some() || (self.blocks_done > 0 && self.name != name) {
                self.fail(SpawnError::OutOfOrder);
            }
            if self.blocks_done == 0 {
                self.name = name[..name.len().min(ECHO_BYTES_MAX)].to_vec();
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
            // These two find the request's end, whatever else is wrong.
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
        let (commands, preputs) = (std::mem::take(&mut self.commands), std::mem::take(&mut self.preputs));
        let spawn = SpawnRequest { commands, preputs };
        Some(match self.error {
            Some(error) => Err(error),
            None => spawn.check().map(|()| spawn).map_err(SpawnError::Request),
        })
    }

    /// Adds a complete block as a command.
    fn add(&mut self, block: Block) -> Result<(), SpawnError> {
        if self.commands.len() == SPAWN_COMMANDS_MAX {
            return Err(SpawnRequestError::Commands.into());
        }
        let command = block.command.into_command("execname", "nprocs")?;
        self.bytes_done += command.bytes_len();
        self.commands.push(command);
        for preput in block.preputs.into_list().ok_or(SpawnError::Incomplete("preputs"))? {
            self.bytes_done += preput.1.len();
            let key_bytes = preput.0.len();
            match add_preput(&mut self.preputs, preput) {
                Some(earlier) => self.bytes_done -= earlier.len(),
                None => self.bytes_done += key_bytes,
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
        let Self { command, preputs, .. } = self;
        match name {
            b"nprocs" => command.nprocs = Some(number("nprocs", value)?),
            b"argcnt" => command.args_announced = Some(number("argcnt", value)?),
            b"preput_num" => preputs.announced = Some(number("preput_num", value)?),
            b"info_num" => command.infos.announced = Some(number("info_num", value)?),
            b"execname" => {
                self.bytes += value.len();
                command.program = Some(value.to_vec());
            }
            _ => {
                let numbered = [
                    (&b"arg"[..], &mut command.args, SPAWN_ARGS_MAX, SpawnRequestError::Args),
                    (b"preput_key_", &mut preputs.keys, SPAWN_PREPUTS_MAX, SpawnRequestError::Preputs),
                    (b"preput_val_", &mut preputs.values, SPAWN_PREPUTS_MAX, SpawnRequestError::Preputs),
                    (b"info_key_", &mut command.infos.keys, SPAWN_INFO_MAX, SpawnRequestError::Info),
                    (b"info_val_", &mut command.infos.values, SPAWN_INFO_MAX, SpawnRequestError::Info),
                ];
                for (prefix, list, entries_max, too_many) in numbered {
                    let Some(index) = index_behind(prefix, name) else { continue };
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

/// Appends a spawn as MPICH <= 4.0 writes it. No byte string may contain a newline.
pub fn write_spawn(spawn: &SpawnRequest, out: &mut Vec<u8>) {
    let mut line = |name: String, value: &[u8]| {
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(value);
        out.push(b'\n');
    };
    for (index, command) in spawn.commands.iter().enumerate() {
        line("mcmd=spawn".into(), b"");
        line(format!("nprocs={}", command.nprocs), b"");
        line("execname=".into(), &command.program);
        line(format!("totspawns={}", spawn.commands.len()), b"");
        line(format!("spawnssofar={}", index + 1), b"");
        for (number, arg) in command.args.iter().enumerate() {
            line(format!("arg{}=", number + 1), arg);
        }
        line(format!("argcnt={}", command.args.len()), b"");
        line(format!("preput_num={}", spawn.preputs.len()), b"");
        for (number, (key, value)) in spawn.preputs.iter().enumerate() {
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
