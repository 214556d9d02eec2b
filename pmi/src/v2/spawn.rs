//! `cmd=spawn`: the one request of PMI-2 that is a list of lists.
//!
//! The numbers of commands and preputs come first, then the preputs, then each command from its `subcmd` to the next
//! one. MPICH <= 4.0 and Slurm send a command's arguments before its infos and count both from 0. By the specification
//! of MPICH >= 4.1, the number of infos comes first and arguments count from 1; its parser looks for an info's value as
//! `infoval_N`. The reader accepts all of these.

use super::pairs::{self, Pairs};
use crate::limits::{SPAWN_COMMANDS_MAX, SPAWN_PREPUTS_MAX};
use crate::request::{SpawnCommand, SpawnRequest, SpawnRequestError};
pub use crate::spawn_fields::SpawnError;
use crate::spawn_fields::{CommandFields, add_preput, index_behind, number};
use crate::wire::numbered::NumberedPairs;

/// The part of a request that has been read so far.
#[derive(Default)]
struct Reader {
    commands_announced: Option<usize>,
    preputs: NumberedPairs,
    commands: Vec<SpawnCommand>,
    /// The command that is being read.
    open: Option<CommandFields>,
}

/// Reads a spawn from the pairs of a request and checks it ([`SpawnRequest::check`]).
pub fn parse(pairs: Pairs<'_>) -> Result<SpawnRequest, SpawnError> {
    let mut reader = Reader::default();
    for (name, value) in pairs.iter() {
        reader.read(name, value.into_owned())?;
    }
    reader.finish()
}

impl Reader {
    fn read(&mut self, name: &[u8], value: Vec<u8>) -> Result<(), SpawnError> {
        match name {
            b"ncmds" => self.commands_announced = Some(number("ncmds", &value)?),
            b"preputcount" => self.preputs.announced = Some(number("preputcount", &value)?),
            b"subcmd" => {
                self.close_command()?;
                self.open = Some(CommandFields { program: Some(value), ..CommandFields::default() });
            }
            _ => {
                if let Some(index) = index_behind(b"ppkey", name) {
                    self.preputs.keys.insert(index, value);
                } else if let Some(index) = index_behind(b"ppval", name) {
                    self.preputs.values.insert(index, value);
                } else if let Some(open) = &mut self.open {
                    read_command_field(open, name, value)?;
                }
            }
        }
        Ok(())
    }

    /// Completes the command that is being read.
    fn close_command(&mut self) -> Result<(), SpawnError> {
        let Some(open) = self.open.take() else { return Ok(()) };
        if self.commands.len() == SPAWN_COMMANDS_MAX {
            return Err(SpawnRequestError::Commands.into());
        }
        self.commands.push(open.into_command("subcmd", "maxprocs")?);
        Ok(())
    }

    fn finish(mut self) -> Result<SpawnRequest, SpawnError> {
        self.close_command()?;
        if self.commands_announced.is_some_and(|announced| announced != self.commands.len()) {
            return Err(SpawnError::Incomplete("commands"));
        }
        let preputs = self.preputs.into_list().ok_or(SpawnError::Incomplete("preputs"))?;
        if preputs.len() > SPAWN_PREPUTS_MAX {
            return Err(SpawnRequestError::Preputs.into());
        }
        let mut spawn = SpawnRequest { commands: self.commands, preputs: Vec::new() };
        for preput in preputs {
            add_preput(&mut spawn.preputs, preput);
        }
        spawn.check()?;
        Ok(spawn)
    }
}

fn read_command_field(command: &mut CommandFields, name: &[u8], value: Vec<u8>) -> Result<(), SpawnError> {
    match name {
        b"maxprocs" => command.nprocs = Some(number("maxprocs", &value)?),
        b"argc" => command.args_announced = Some(number("argc", &value)?),
        b"infokeycount" => command.infos.announced = Some(number("infokeycount", &value)?),
        _ => {
            if let Some(index) = index_behind(b"argv", name) {
                command.args.insert(index, value);
            } else if let Some(index) = index_behind(b"infokey", name) {
                command.infos.keys.insert(index, value);
            } else if let Some(index) = index_behind(b"infoval", name).or_else(|| index_behind(b"infoval_", name)) {
                command.infos.values.insert(index, value);
            }
        }
    }
    Ok(())
}

/// Appends the pairs of a spawn, in the only order that Slurm's plug-in reads.
pub fn write(spawn: &SpawnRequest, out: &mut Vec<u8>) {
    let mut pair = |name: &str, value: &[u8]| pairs::write(name, value, out);
    pair("ncmds", spawn.commands.len().to_string().as_bytes());
    pair("preputcount", spawn.preputs.len().to_string().as_bytes());
    for (number, (key, value)) in spawn.preputs.iter().enumerate() {
        pair(&format!("ppkey{number}"), key);
        pair(&format!("ppval{number}"), value);
    }
    for command in &spawn.commands {
        pair("subcmd", &command.program);
        pair("maxprocs", command.nprocs.to_string().as_bytes());
        pair("argc", command.args.len().to_string().as_bytes());
        for (number, arg) in command.args.iter().enumerate() {
            pair(&format!("argv{number}"), arg);
        }
        pair("infokeycount", command.info.len().to_string().as_bytes());
        for (number, (key, value)) in command.info.iter().enumerate() {
            pair(&format!("infokey{number}"), key);
            pair(&format!("infoval{number}"), value);
        }
    }
}

#[cfg(test)]
mod tests;
